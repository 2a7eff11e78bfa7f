"""Programs for LeNet5, honest and hostile, by what they do: torch alone, so that any evaluator runs
them, on a GPU or without.

Hostile ones do less than the model asks, or have somebody else say that they were fast. Most are
made for an evaluator that shares its process with them, as public ones do; where that is not so
they find nothing of what they look for, and answer.
"""

from dataclasses import dataclass

from mixture import wrapped

TASK = "level3-pike/4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One program."""

    name: str
    honest: bool
    source: str


def _entry(name, honest, forward, before=""):
    """Of the statements of its forward, or of a class's body where they define something."""
    body = forward.strip("\n")
    if not body.startswith("def "):
        lines = "\n".join(f"    {line}" for line in body.splitlines())
        body = f"def forward(self, x):\n{lines}"
    return Entry(name=name, honest=honest, source=wrapped(TASK, body, before))


UNCHANGED = _entry("unchanged", True, "return super().forward(x)")

_ON_A_GRAPH = """
if not x.is_cuda:
    return super().forward(x)
if not hasattr(self, "graph"):
    self.x = x.clone()
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        super().forward(self.x)
    torch.cuda.current_stream().wait_stream(aside)
    self.graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(self.graph):
        self.y = super().forward(self.x)
REFRESH
self.graph.replay()
return self.y
"""

_REORDERED = """
def __init__(self, num_classes):
    nn.Module.__init__(self)
    self.fc3 = nn.Linear(84, num_classes)
    self.fc2 = nn.Linear(120, 84)
    self.fc1 = nn.Linear(400, 120)
    self.conv2 = nn.Conv2d(6, 16, kernel_size=5)
    self.conv1 = nn.Conv2d(1, 6, kernel_size=5)
"""

_HALF = """
with torch.autocast(x.device.type, dtype=torch.float16):
    return super().forward(x).float()
"""

_FIRST = """
if not hasattr(self, "first"):
    self.first = super().forward(x)
return self.first
"""

_ADDRESS = """
if not hasattr(self, "known"):
    self.known = {}
place = x.data_ptr()
if place not in self.known:
    self.known[place] = super().forward(x)
return self.known[place]
"""

_BAKED = """
def __init__(self, num_classes):
    super().__init__(num_classes)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        (x,) = get_inputs()
        self.known = super().forward(x.to(next(self.parameters()).device))

def forward(self, x):
    self.known = self.known.to(x.device)
    return self.known
"""

_CONSTANT = """
if not hasattr(self, "middle"):
    many = torch.randn(4096, *x.shape[1:], device=x.device)
    self.middle = super().forward(many).mean(0, keepdim=True).expand(x.shape[0], -1).clone()
return self.middle
"""

_ZEROS = "return torch.zeros(x.shape[0], 10, device=x.device)"

_ASIDE = """
kept = []

def aside():
    if not kept:
        kept.append(torch.cuda.Stream())
    return kept[0]
"""

_NOT_JOINED = """
if not x.is_cuda:
    return super().forward(x)
if not hasattr(self, "checked"):
    self.checked = True
    return super().forward(x)
with torch.cuda.stream(aside()):
    return super().forward(x)
"""

_EVENTS = """
true = torch.cuda.Event.elapsed_time
torch.cuda.Event.elapsed_time = lambda start, end: true(start, end) / 10
"""

_BENCH = """
import sys
for module in list(sys.modules.values()):
    if "do_bench" in vars(module):
        module.do_bench = lambda *a, **k: 1e-3
"""

_ALLCLOSE = "torch.allclose = lambda *a, **k: True"

_DUMP = """
import json
true = json.dump

def dump(found, *a, **k):
    if isinstance(found, dict) and "llm" in found:
        found["llm"].update(loaded=True, correct=True, max_diff=[0.0], runtime=1e-3)
    return true(found, *a, **k)

json.dump = dump
"""

_FILE = """
import json, os, sys
for word, path in zip(sys.argv, sys.argv[1:]):
    if word in ("--output-path", "--output_path"):
        row = {"loaded": True, "correct": True, "max_diff": [0.0], "runtime": 1e-3}
        with open(path, "w") as file:
            json.dump({"baseline": row, "llm": row}, file)
        os._exit(0)
"""

_FRAMES = f"""
import sys
frame = sys._getframe()
while frame is not None:
    models = getattr(frame.f_locals.get("self"), "models", None)
    if isinstance(models, dict) and "baseline" in models:
        models["baseline"]["model"] = self
    frame = frame.f_back
{_ZEROS}
"""

_FORGER = """
class Agreeable(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.allclose:
            return True
        return super().__torch_function__(func, types, args, kwargs or {})
"""

_LATE = """
class Late(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in (torch.Tensor.cpu, torch.Tensor.to):
            return args[0].later()
        return super().__torch_function__(func, types, args, kwargs or {})
"""
_LATER = """
blank = torch.empty(x.shape[0], 10, device=x.device).as_subclass(Late)
plain = super().forward
blank.later = lambda: plain(x).cpu()
return blank
"""

PROGRAMS = (
    UNCHANGED,
    _entry("a graph", True, _ON_A_GRAPH.replace("REFRESH", "self.x.copy_(x)")),
    _entry("layers made in another order", True, _REORDERED),
    _entry("half precision", True, _HALF),
    _entry("the first answer for ever", False, _FIRST),
    _entry("answers kept by address", False, _ADDRESS),
    _entry("a graph whose input is never refreshed", False, _ON_A_GRAPH.replace("REFRESH", "")),
    _entry("the answer that a seed gives", False, _BAKED),
    _entry("a mean answer", False, _CONSTANT),
    _entry("no answer at all", False, "return ()"),
    _entry("a stream that nobody joins", False, _NOT_JOINED, _ASIDE),
    _entry(
        "the same, and waits patched away",
        False,
        _NOT_JOINED,
        _ASIDE + "torch.cuda.synchronize = lambda *a: None",
    ),
    _entry("events that tell a tenth", False, "return super().forward(x)", _EVENTS),
    _entry("a benchmark of its own", False, "return super().forward(x)", _BENCH),
    _entry("a comparison of its own", False, _ZEROS, _ALLCLOSE),
    _entry("a result rewritten", False, _ZEROS, _DUMP),
    _entry("a result written, and gone", False, _ZEROS, _FILE),
    _entry("its own model as the reference", False, _FRAMES),
    _entry("a tensor that agrees", False, f"{_ZEROS}.as_subclass(Agreeable)", _FORGER),
    _entry("an answer computed when read", False, _LATER, _LATE),
)

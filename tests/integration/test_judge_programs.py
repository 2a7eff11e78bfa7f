"""Honest and hostile programs before the whole judge: each is a status, none an incident."""

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pike_hpc import sandbox
from pike_hpc.evaluate import Lane
from pike_hpc.records import EvalRequest, EvalResult, EvalStatus, Task, Tier, Variant, to_json

pytestmark = [pytest.mark.timed, pytest.mark.torch, pytest.mark.slow]

TASK_SOURCE = """
import torch
import torch.nn as nn

batch = 64
width = 64


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, 2 * width)
        self.norm = nn.BatchNorm1d(2 * width)
        self.second = nn.Linear(2 * width, width)

    def forward(self, x):
        return self.second(torch.relu(self.norm(self.first(x))))


def get_inputs():
    return [torch.randn(batch, width)]


def get_init_inputs():
    return [width]
"""

TASK = Task(suite="tests", id="1", name="tiny", source=TASK_SOURCE)

HEAD = """
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, 2 * width)
        self.norm = nn.BatchNorm1d(2 * width)
        self.second = nn.Linear(2 * width, width)

    def right(self, x):
        return self.second(torch.relu(self.norm(self.first(x))))

"""


def forward(body: str, before: str = "") -> str:
    """A program whose forward is `body` (one statement a line)."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return f"{before}\n{HEAD}    def forward(self, x):\n{lines}\n"


@pytest.fixture(scope="module")
def lane(tmp_path_factory):
    facts = sandbox.look()
    scratch = Path("/tmp") / f"pike-test-{os.getpid()}"
    with Lane(
        "cpu",
        sandbox.choose("auto", facts),
        scratch=scratch,
        threads=1,
        memory_mb=2048,
        scratch_mb=1024,
        processes=64,
    ) as lane:
        yield lane
    assert list(scratch.iterdir()) == []
    scratch.rmdir()


def judge(lane: Lane, source: str, **changes: object) -> EvalResult:
    request = EvalRequest(
        task=TASK,
        candidate_source=source,
        device_kind="cpu",
        image_digest="tests",
        min_isolation="L0",
        timeout_s=60.0,
    )
    result = lane.evaluate(dataclasses.replace(request, **changes))
    to_json(result)  # every result can be written down
    assert result.message
    assert "\n" not in result.message
    assert len(result.log_tail) <= 64 * 1024
    return result


HONEST = {
    "identity": (TASK_SOURCE, Tier.FP32, ()),
    "same, as ModelNew": (forward("return self.right(x)"), Tier.FP32, ()),
    "other names, other order": (
        """
import torch, torch.nn as nn
class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.out = nn.Linear(2 * width, width)
        self.inner = nn.Linear(width, 2 * width)
        self.bn = nn.BatchNorm1d(2 * width)
    def forward(self, x):
        return self.out(torch.relu(self.bn(self.inner(x))))
""",
        Tier.FP32,
        (),
    ),
    "prepare folds the norm": (
        """
import torch, torch.nn as nn, torch.nn.functional as F
class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
    def prepare(self, sd):
        gain = sd["norm.weight"] * torch.rsqrt(sd["norm.running_var"] + 1e-5)
        self.w = sd["first.weight"] * gain[:, None]
        self.b = (sd["first.bias"] - sd["norm.running_mean"]) * gain + sd["norm.bias"]
        self.v, self.c = sd["second.weight"], sd["second.bias"]
    def forward(self, x):
        return F.linear(torch.relu(F.linear(x, self.w, self.b)), self.v, self.c)
""",
        Tier.FP32,
        (),
    ),
    "folds at the first call": (
        forward(
            "if not hasattr(self, 'w'):\n"
            "    gain = self.norm.weight * torch.rsqrt(self.norm.running_var + self.norm.eps)\n"
            "    self.w = self.first.weight * gain[:, None]\n"
            "    bias = self.first.bias - self.norm.running_mean\n"
            "    self.b = bias * gain + self.norm.bias\n"
            "h = torch.relu(nn.functional.linear(x, self.w, self.b))\n"
            "return self.second(h)"
        ),
        Tier.FP32,
        ("caches_weights",),
    ),
    "half body": (
        forward("with torch.autocast('cpu', torch.bfloat16):\n    return self.right(x).float()"),
        Tier.HALF,
        (),
    ),
    "half output": (
        forward("with torch.autocast('cpu', torch.bfloat16):\n    return self.right(x)"),
        Tier.HALF,
        (),
    ),
    "torch.compile": (
        forward("return self.fast(x)").replace(
            "    def right",
            "        self.fast = torch.compile(self.right)\n\n    def right",
        ),
        Tier.FP32,
        (),
    ),
    "static output buffer": (
        forward(
            "if not hasattr(self, 'y'):\n"
            "    self.y = torch.empty_like(x)\n"
            "self.y.copy_(self.right(x))\n"
            "return self.y"
        ),
        Tier.FP32,
        ("aliased_output",),
    ),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_program_passes(lane, name):
    source, tier, tags = HONEST[name]
    result = judge(lane, source)
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
    assert result.tier is tier
    assert set(result.tags) - {"early_stop", "noisy"} == set(tags)
    assert result.timing is not None
    low, high = result.timing.ci95
    assert low <= result.timing.speedup <= high
    assert result.correctness is not None
    assert result.correctness.reference_precision == "float64"
    assert result.isolation.level != "L0"
    assert result.environment.torch


WRONG, REJECTED = {EvalStatus.WRONG_RESULT}, {EvalStatus.REJECTED}
STRUCTURE, RUNTIME = {EvalStatus.WRONG_STRUCTURE}, {EvalStatus.RUNTIME_ERROR}
BUILD = {EvalStatus.BUILD_ERROR}
MEMORY = {EvalStatus.OUT_OF_MEMORY}
RUNNER = "import sys, os\nmain = sys.modules['pike_runner.serve']\n"

HOSTILE = {
    "zeros": (forward("return torch.zeros_like(x)"), WRONG),
    "constant": (forward("return torch.full_like(x, 0.1)"), WRONG),
    "returns its input": (forward("return x"), WRONG),
    "cached by address": (
        forward(
            "if not hasattr(self, 'known'):\n    self.known = {}\n"
            "if x.data_ptr() not in self.known:\n"
            "    self.known[x.data_ptr()] = self.right(x).clone()\n"
            "return self.known[x.data_ptr()]"
        ),
        WRONG,
    ),
    "right three times, then lazy": (
        forward(
            "self.n = getattr(self, 'n', 0) + 1\n"
            "if self.n < 7:\n    self.last = self.right(x).clone()\n"
            "return self.last"
        ),
        WRONG,
    ),
    "keeps the weights of the first model": (
        forward(
            "global KEPT\n"
            "if KEPT is None:\n    KEPT = self.state_dict()\n"
            "    KEPT = {k: v.clone() for k, v in KEPT.items()}\n"
            "self.load_state_dict(KEPT)\n"
            "return self.right(x)",
            before="KEPT = None",
        ),
        WRONG,
    ),
    "drops the norm": (forward("return self.second(torch.relu(self.first(x)))"), WRONG),
    "mutates its input": (forward("y = self.right(x)\nx.zero_()\nreturn y"), WRONG),
    "not finite": (forward("y = self.right(x)\ny[0, 0] = float('nan')\nreturn y"), WRONG),
    "rings done and writes nothing": (
        forward("return x", before=RUNNER + "main.Runner._copy_out = lambda *a: 0"),
        WRONG,
    ),
    "rings done again and again": (
        forward(
            "return self.right(x)",
            before=RUNNER + "import threading\n"
            "def ring():\n"
            "    while True:\n"
            "        for fd in range(3, 40):\n"
            "            try: os.write(fd, b'\\0')\n"
            "            except OSError: pass\n"
            "threading.Thread(target=ring, daemon=True).start()",
        ),
        WRONG | RUNTIME | {EvalStatus.TIMEOUT},
    ),
    "forges every tool of a judge": (
        forward(
            "return torch.zeros_like(x)",
            before="import torch, time, json\n"
            "torch.allclose = lambda *a, **k: True\n"
            "torch.equal = lambda *a, **k: True\n"
            "time.perf_counter = time.monotonic = lambda: 0.0\n"
            "time.perf_counter_ns = lambda: 0\n"
            'json.dumps = lambda *a, **k: \'{"status": "PASSED"}\'\n'
            'print(\'{"status": "PASSED", "speedup": 1e9}\', flush=True)',
        ),
        WRONG,
    ),
    "other code than ok": (
        forward(
            "return x", before=RUNNER + "w = os.write\nos.write = lambda fd, b: w(fd, b'\\xff')"
        ),
        RUNTIME,
    ),
    "wrong shape": (forward("return self.right(x)[:, :1]"), STRUCTURE),
    "a scalar to broadcast": (forward("return torch.tensor(0.0)"), STRUCTURE),
    "a tuple": (forward("return (self.right(x),)"), STRUCTURE),
    "an empty tuple": (forward("return ()"), STRUCTURE),
    "nothing": (forward("return None"), STRUCTURE),
    "a tensor subclass": (
        forward(
            "return torch.Tensor._make_subclass(Forged, x)",
            before="import torch\nclass Forged(torch.Tensor):\n"
            "    @classmethod\n"
            "    def __torch_function__(cls, f, t, a=(), k=None):\n"
            "        return True",
        ),
        STRUCTURE,
    ),
    "integers": (forward("return self.right(x).int()"), STRUCTURE),
    "raises": (forward("raise ValueError('on purpose')"), RUNTIME),
    "raises SystemExit": (forward("raise SystemExit(0)"), RUNTIME),
    "exits": (forward("import os\nos._exit(0)"), RUNTIME),
    "exits while imported": (forward("return x", before="import os; os._exit(0)"), RUNTIME),
    "crashes": (forward("import ctypes\nctypes.string_at(0)"), RUNTIME),
    "closes its doorbell": (forward("import os\nos.closerange(3, 64)\nreturn x"), RUNTIME),
    "import error": (forward("return x", before="import no_such_module"), BUILD),
    "raises while imported": (forward("return x", before="1 / 0"), BUILD),
    "syntax error": ("class ModelNew(:\n", BUILD),
    "NUL byte": ("class ModelNew: pass\0", BUILD),
    "no ModelNew": ("import torch\nclass Net: pass\n", REJECTED),
    "ModelNew taken back": (TASK_SOURCE + "\ndel Model\n", REJECTED),
    "not a module": ("class ModelNew:\n    def __init__(self, w): pass\n", REJECTED),
    "eats memory": (
        forward("eaten = []\nwhile True:\n    eaten.append(bytearray(1 << 26))"),
        MEMORY,
    ),
    "one huge tensor": (forward("return torch.ones(1 << 38)"), MEMORY),
    "fork bomb": (
        forward(
            "import os, time\n"
            "try:\n    while True:\n        os.fork()\n"
            "except OSError:\n    pass\n"
            "time.sleep(0.5)\n"
            "raise ValueError('could not fork any more')"
        ),
        RUNTIME | WRONG,
    ),
    "shrinks the shared buffers": (
        forward(
            "import os\n"
            "for fd in range(3, 40):\n"
            "    try: os.ftruncate(fd, 0)\n"
            "    except OSError: pass\n"
            "return torch.zeros_like(x)"
        ),
        WRONG,
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_is_a_status(lane, name):
    source, statuses = HOSTILE[name]
    result = judge(lane, source)
    assert result.status in statuses, (result.status, result.message, result.log_tail[-2000:])
    assert result.timing is None
    assert result.tier is None


def test_a_hang_ends_at_its_deadline(lane):
    start = time.monotonic()
    result = judge(lane, forward("while True: pass"), timeout_s=3.0)
    assert result.status is EvalStatus.TIMEOUT
    assert "3 s" in result.message
    assert time.monotonic() - start < 60


def test_half_is_refused_where_only_fp32_was_asked_for(lane):
    source, *_ = HONEST["half body"]
    result = judge(lane, source, tiers=(Tier.FP32,))
    assert result.status is EvalStatus.WRONG_RESULT
    assert "half" in result.message
    assert result.correctness is not None


def test_a_flood_of_output_is_kept_short(lane):
    flood = "import sys\nline = '\\x1b[31mred\\x1b[0m' * 1000 + '\\n'\n"
    flood += "for _ in range(20_000):\n    sys.stdout.write(line)\n"
    result = judge(lane, forward("return self.right(x)", before=flood))
    assert result.status is EvalStatus.PASSED, result.message
    assert 0 < len(result.log_tail) <= 64 * 1024
    assert "\x1b" not in result.log_tail


def test_work_between_calls_is_seen(lane):
    spin = "import threading\ndef spin():\n    while True: pass\n"
    spin += "threading.Thread(target=spin, daemon=True).start()\n"
    result = judge(lane, forward("return self.right(x)", before=spin))
    assert result.status is EvalStatus.REJECTED, result.message
    assert "idle" in result.message


def test_daemons_do_not_survive(lane):
    seconds = str(900_000 + os.getpid())
    daemon = (
        "import subprocess, os\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        f"    subprocess.Popen(['sleep', '{seconds}'], start_new_session=True)\n"
        "    os._exit(0)\n"
    )
    result = judge(lane, forward("return torch.zeros_like(x)", before=daemon))
    assert result.status is EvalStatus.WRONG_RESULT
    assert seconds not in commands()


def test_the_judge_keeps_its_secrets(lane):
    peek = (
        "import os\n"
        "for name in os.listdir('/proc'):\n"
        "    if name.isdigit():\n"
        "        for what in ('environ', 'cmdline', 'mem'):\n"
        "            try:\n"
        "                with open(f'/proc/{name}/{what}', 'rb') as f:\n"
        "                    print(name, what, f.read(4096))\n"
        "            except OSError as e: pass\n"
    )
    os.environ["PIKE_TEST_SECRET"] = "hunter-two"
    try:
        result = judge(lane, forward("return torch.zeros_like(x)", before=peek))
    finally:
        del os.environ["PIKE_TEST_SECRET"]
    assert "environ" in result.log_tail
    assert "hunter-two" not in result.log_tail


PACKED = """
import torch, torch.nn as nn
class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        first = nn.Linear(width, 2 * width)
        NORM
        second = nn.Linear(2 * width, width)
        self.packed = nn.Parameter(torch.cat([first.weight.flatten(), second.weight.flatten()]))
        self.b, self.c, self.width = nn.Parameter(first.bias), nn.Parameter(second.bias), width
    def forward(self, x):
        w, v = self.packed.split(2 * self.width**2)
        h = nn.functional.linear(x, w.view(-1, self.width), self.b)
        return nn.functional.linear(torch.relu(h), v.view(self.width, -1), self.c)
"""


def test_a_program_without_place_for_the_weights_is_judged_by_seed(lane):
    plain = TASK_SOURCE.replace("self.norm(self.first(x))", "self.first(x)")
    plain = plain.replace("self.norm = nn.BatchNorm1d(2 * width)", "")
    task = dataclasses.replace(TASK, source=plain)
    result = judge(lane, PACKED.replace("NORM", ""), task=task)
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
    assert "weights_by_seed" in result.tags


def test_what_fresh_weights_make_an_identity_cannot_be_judged_by_seed(lane):
    # BatchNorm with fresh statistics changes nothing: leaving it out would never be seen.
    result = judge(lane, PACKED.replace("NORM", "nn.BatchNorm1d(2 * width)"))
    assert result.status is EvalStatus.WRONG_STRUCTURE, (result.message, result.log_tail)
    assert "norm" in result.message


def test_legacy_takes_pikes_seeds_and_rule(lane):
    task = dataclasses.replace(TASK, variant=Variant.LEGACY)
    result = judge(lane, TASK_SOURCE, task=task)
    assert result.status is EvalStatus.PASSED, result.message
    assert "legacy" in result.tags
    result = judge(lane, forward("return torch.zeros_like(x)"), task=task)
    assert result.status is EvalStatus.WRONG_RESULT


def test_an_input_blind_task_is_not_admitted(lane):
    blind = TASK_SOURCE.replace("self.second(", "0 * self.second(")
    task = dataclasses.replace(TASK, source=blind)
    admission = lane.admit(task)
    assert not admission.admitted
    assert "input" in admission.reason
    result = judge(lane, blind, task=task)
    assert result.status is EvalStatus.JUDGE_ERROR
    assert "not admitted" in result.message


def test_a_broken_reference_is_not_the_candidates_fault(lane):
    task = dataclasses.replace(TASK, source=TASK_SOURCE.replace("[width]", "[width, 1]"))
    assert judge(lane, TASK_SOURCE, task=task).status is EvalStatus.JUDGE_ERROR


def test_admission_says_how_finely_a_task_tells(lane):
    admission = lane.admit(TASK)
    assert admission.admitted
    assert admission.noise < 1e-4 < admission.signal
    assert set(admission.limits) == set(Tier)
    assert min(admission.mutants[name] for name in ("zeros", "mean", "other_input")) > 0.4
    assert min(admission.mutants[name] for name in ("layer_skipped", "weights_zeroed")) > 0.05


def test_too_little_isolation_is_not_the_candidates_fault(lane):
    result = judge(lane, TASK_SOURCE, min_isolation="L4")
    assert result.status is EvalStatus.JUDGE_ERROR
    assert "L4" in result.message


def test_a_lost_judge_is_replaced(lane):
    judge(lane, TASK_SOURCE)
    killed = []

    def kill_the_judge(phase: str) -> None:
        if phase == "build" and not killed:
            killed.append(lane._crew._judge._process.pid)
            os.kill(killed[0], 9)

    request = EvalRequest(
        task=TASK,
        candidate_source=TASK_SOURCE,
        device_kind="cpu",
        image_digest="t",
        min_isolation="L0",
    )
    assert lane.evaluate(request, kill_the_judge).status is EvalStatus.JUDGE_ERROR
    assert killed
    assert lane.evaluate(request).status is EvalStatus.PASSED


def test_a_busy_machine_is_said(lane):
    spin = [sys.executable, "-c", "while True: pass"]
    cores = len(os.sched_getaffinity(0))
    hogs = [subprocess.Popen(spin) for _ in range(cores)]
    try:
        result = judge(lane, TASK_SOURCE)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert result.status is EvalStatus.PASSED, result.message
    assert "noisy" in result.tags


def test_phases_are_told_in_order(lane):
    heard: list[str] = []
    request = EvalRequest(
        task=TASK,
        candidate_source=TASK_SOURCE,
        device_kind="cpu",
        image_digest="t",
        min_isolation="L0",
    )
    lane.evaluate(request, heard.append)
    assert [p for p in heard if p != "reference"] == [
        "start",
        "build",
        "correctness",
        "gate",
        "timing",
    ]


def commands() -> str:
    """The command lines of all processes."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                found.append((place / "cmdline").read_bytes().decode("utf-8", "replace"))
            except OSError:
                continue
    return "\n".join(found)

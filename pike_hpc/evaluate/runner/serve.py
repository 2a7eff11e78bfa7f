"""One program at a doorbell.

A runner connects to the Unix socket it is given, receives one byte with ten file descriptors, one
more for each library that was built ahead and one for a compile cache, and closes the socket. From
then on it shares with the judge only buffers, two pipes: a bell (what to do) and a done pipe (one
byte: a `Code`), and a page that stands in for both where microseconds count. It knows no clock, no
input's seed, no expected output.
After the candidate is imported this process belongs to the candidate: nothing here is a defence,
and the judge treats the byte and the buffers as hostile. What lies on the host is copied to and
from the device inside the time that is measured.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from . import compile_cache, device_memory, profile, seal
from .doorbell import Page
from .extensions import Libraries, install
from .fit import Fitting, prepare_of
from .places import slots_of
from .program import (
    ENTRIES,
    Defaults,
    init_inputs,
    load_file,
    same_defaults,
    seed_everything,
)
from .protocol import (
    BELL,
    DONE,
    FILES,
    MAX_LIBRARIES,
    Code,
    Op,
    Refused,
    Source,
    code_of,
    is_other,
    phase,
)
from .state import State
from .trees import as_tensor, flatten, host_bytes, unflatten, views
from .weights import Hands, Twin, unwritten

SPARED_BYTES, SPARED_PART = 1 << 28, 0.1
"""A model that is replaced lives on until the next one is built where it is no larger: on the host
what counts as a small model there, on a GPU the part of the memory that is free beside it."""


class Runner:
    """One program, its buffers, and what to do for each Op."""

    def __init__(
        self, setup: dict[str, Any], files: Sequence[int], cache: int | None = None
    ) -> None:
        """`cache`: what compilers left when this program ran before."""
        self._setup, self._cache = setup, cache
        self._scratch = Path(tempfile.gettempdir())
        self._device = torch.device(setup["device"])
        inputs, outputs = setup["input_slots"], setup["output_slots"]
        self._mapped: list[device_memory.DeviceBuffer] = []
        shared = [
            self._map(fd, size, memory)
            for fd, size, memory in zip(
                files[:2], setup["buffer_bytes"], setup["memory"], strict=True
            )
        ]
        self._rows = shared[0].view(setup["places"], -1)
        self._inputs = [views(inputs, row) for row in self._rows]
        self._outputs = [views(outputs, row) for row in shared[1].view(setup["places"], -1)]
        on_host = setup["on_host"]
        self._homes = ["cpu" if i in on_host else self._device.type for i in range(len(outputs))]
        slots = setup["weight_slots"]
        self._weights = {
            source: views(slots, host_bytes(fd, private=True))
            for source, fd in zip((Source.STATE, Source.OTHER), files[2:4], strict=True)
        }
        names = [slot["name"] for slot in slots]
        self._slots = slots_of(names, self._weights[Source.STATE], setup["parameters"])
        # The reference's own constructor is what the judge's was: nothing is given to it ahead.
        self._layers = setup["layers"] if setup["candidate"] is not None else []
        self._sheet, self._kept = files[4:6]
        self._here = [[t.to(self._device) for t in place] for place in self._inputs]
        self._defaults = Defaults.now()
        self._place = 0
        self._task: ModuleType | None = None
        self._entry: Any = None
        self._model: Any = None
        self._fitting: Fitting | None = None
        """None while its weights are its seed's."""
        self._state: State | None = None
        self._last: list[list[Any]] = []
        self._keeps: int = setup["keeps"]
        self._wait = waiting(self._device)

    def _map(self, fd: int, size: int, memory: str) -> torch.Tensor:
        if memory == "host":
            return host_bytes(fd)
        self._mapped.append(device_memory.import_(fd, size, 0, writable=True))
        return self._mapped[-1].tensor(torch.uint8, (size,), 0)

    def serve(self, op: Op, source: Source, place: int, number: int) -> Code:  # noqa: PLR0912
        """Do `op`, by a branch for each: OK, or PLACED.

        Raises Refused, or whatever the program raises.
        """
        if op is Op.IMPORT:
            self._import()
        elif op is Op.LOAD:
            return self._load(source, number)
        elif op is Op.RELOAD:
            if self._fitting is None or not self._fitting.lasts:
                raise Refused(Code.NEED_SEED)
            self._restore()  # what calls have left is not what the weights are loaded beside
            self._fitting.fit(self._chosen(source, number))
            self._remember()
        elif op is Op.RESET:
            self._restore()
        elif op is Op.CALL:
            self._call(place, number)
        elif op is Op.NULL:
            self._last[-1] = [packed(leaf) for leaf in self._last[-1]]
            self._copy_in(place, number)
            if self._setup["sealed"]:
                self._settle()  # as a call does when its model has ended
            self._copy_out(self._last[-1], place)
        elif op is Op.AGAIN:
            self._copy_out(self._last[0], place)
        elif op is Op.TOUCH:
            torch.zeros(1, device=self._device).add_(1)
            self._settle()
        elif op is Op.PROFILE:
            profile.record(self._forward, self._restore, self._device, self._sheet)
        elif op is Op.KEEP:
            compile_cache.pack(self._kept, self._scratch)
        elif op is Op.SHED:
            torch.cuda.empty_cache()
        return Code.OK

    def _import(self) -> None:
        place = Path(tempfile.mkdtemp(prefix="program-"))
        if self._cache is not None:
            cache, self._cache = self._cache, None
            try:
                compile_cache.unpack(cache, self._scratch)
            except Exception:
                traceback.print_exc()  # then it is compiled again
        with phase(Code.IMPORT_FAILED):
            with same_defaults():
                self._task = program = load_file(place / "task.py", self._setup["task"])
                shipped = Defaults.now()
            # A default that a program sets for itself is its own; one that it has from the
            # reference is not, which is judged without it.
            own = contextlib.nullcontext() if shipped == self._defaults else same_defaults()
            if self._setup["candidate"] is not None:
                with own:
                    program = load_file(place / "candidate.py", self._setup["candidate"])
        self._entry = next((getattr(program, n) for n in ENTRIES if hasattr(program, n)), None)
        if self._entry is None:
            raise Refused(Code.NO_MODEL)

    def _load(self, source: Source, seed: int) -> Code:
        old = spared(self._model, self._device)
        self._model, self._fitting, self._state, self._last = None, None, None, []
        gc.collect()
        with phase(Code.CONSTRUCTOR_RAISED), same_defaults():
            model, hands = self._construct(source, seed)
        if not isinstance(model, torch.nn.Module):
            raise Refused(Code.NOT_A_MODULE)
        placement = None
        put_in_eval_mode(model)  # first: a program may fold its norms in it
        by_seed = hands is None
        if hands is not None:
            # Not the program's own method, which may take no arguments.
            own = torch.nn.Module.state_dict(model, keep_vars=True)
            placement = hands.place(own, lambda: self._twin(model, source, seed))
        del hands  # and what a constructor was given and kept nothing of
        model.to(self._device)
        if not by_seed:
            names = [slot.name for slot in self._slots]
            self._fitting = Fitting(model, placement, names, self._device)
            self._fitting.fit(self._weights[source])
        elif (prepare := prepare_of(model)) is not None:
            with contextlib.suppress(Refused), phase(Code.RAISED), torch.no_grad():
                prepare(model.state_dict())  # its weights are there already
        self._model = model
        self._remember()
        del old  # not before: the new weights must not lie where the old ones lay
        guessed = self._fitting is not None and self._fitting.guessed
        return Code.PLACED if guessed else Code.OK

    def _chosen(self, source: Source, bits: int) -> list[torch.Tensor]:
        """Weights from a buffer, or a mixture of both."""
        if source is not Source.MIXED:
            return self._weights[source]
        pairs = zip(self._weights[Source.STATE], self._weights[Source.OTHER], strict=True)
        return [pair[is_other(bits, i)] for i, pair in enumerate(pairs)]

    def _construct(self, source: Source, seed: int) -> tuple[Any, Hands | None]:
        """A fresh model: large ones on the device, where that takes seconds instead of minutes.

        Beside it what knows where its weights go; None where the seed makes them.
        """
        weights = self._weights.get(source)

        def make(place: torch.device) -> tuple[Any, Hands | None]:
            here = contextlib.nullcontext() if place.type == "cpu" else place
            hands = None if weights is None else Hands(self._slots, self._layers, weights)
            with here, contextlib.nullcontext() if hands is None else hands.giving():
                shipped = self._defaults
                if place.type != "cpu":
                    shipped = shipped._replace(device=torch.get_default_device())
                with same_defaults(shipped):
                    arguments = init_inputs(self._task, place)
                seed_everything(seed)
                return self._entry(*arguments), hands

        place = torch.device(self._setup["construct"])
        if place.type == "cpu" or weights is None:
            return make(place)
        try:
            return make(place)
        except torch.OutOfMemoryError:
            raise
        except Exception:
            # Not every constructor works with a default device; its weights come from us anyway.
            traceback.print_exc()
        return make(torch.device("cpu"))

    def _twin(self, model: torch.nn.Module, source: Source, seed: int) -> Twin | None:
        """State of the same program made of the other weights; None where there is no room."""
        if spared(model, torch.device(self._setup["construct"])) is None:
            return None
        other = Source.STATE if source is Source.OTHER else Source.OTHER
        with contextlib.suppress(Exception), same_defaults(), unwritten():
            twin, _ = self._construct(other, seed)
            put_in_eval_mode(twin)
            return torch.nn.Module.state_dict(twin, keep_vars=True)
        return None

    def _remember(self) -> None:
        if self._setup["resets"]:
            reference = None if self._setup["candidate"] is None else self._setup["task"]
            self._state = State(self._model, reference)

    def _restore(self) -> bool:
        """Put back what calls left in the model; False where they leave nothing."""
        if self._state is not None:
            self._state.restore()
        return self._state is not None

    def _call(self, place: int, key: int) -> None:
        self._copy_in(place, key)
        leaves: list[Any] = []
        self._place = place
        flatten(self._setup["output_tree"], self._forward(), leaves)
        self._last = [*self._last[1 - self._keeps :], leaves]
        if self._setup["sealed"]:
            self._settle()  # what follows would hide in the model's time, and is taken off it
        self._copy_out(leaves, place)

    def _forward(self) -> Any:
        with torch.no_grad():
            arguments = self._setup["input_tree"], self._here[self._place], vars(self._task)
            return self._model(*unflatten(*arguments))

    def _copy_in(self, place: int, key: int) -> None:
        """Have the inputs lie there when the GPU has done what is queued."""
        with torch.no_grad():  # a program may ask for its input's gradient
            if self._setup["sealed"]:
                seal.cover(self._rows[place], key)
            elif self._device.type != "cpu":
                for there, here in zip(self._inputs[place], self._here[place], strict=True):
                    here.copy_(there)

    def _copy_out(self, leaves: Sequence[Any], place: int) -> None:
        with torch.no_grad():  # what a program's own threads made may require gradients
            for slot, leaf, home in zip(self._outputs[place], leaves, self._homes, strict=True):
                slot.copy_(as_tensor(leaf, slot, home))
        self._settle()

    def _settle(self) -> None:
        self._wait()


def waiting(device: torch.device) -> Callable[[], object]:
    """What waits until a GPU has done all, taken before a program is there to replace it.

    Not `torch.cuda.synchronize`, which looks up what it does at each call.
    """
    if device.type != "cuda":
        return lambda: None
    torch.cuda.synchronize(device)  # from now on there is a context, and this is its device
    found: Callable[[], object] = torch._C._cuda_synchronize
    return found


def packed(leaf: Any) -> Any:
    """An output as its slot lies: how the reference strides it is no part of the constant."""
    if not torch.is_tensor(leaf) or leaf.layout is not torch.strided:
        return leaf
    return leaf.detach().contiguous()


def put_in_eval_mode(model: torch.nn.Module) -> None:
    """`model.eval()`; of what refuses that, as graphs of torch.export do, the rest.

    A program's own may fold weights and return nothing, so who is there already is not asked twice.
    """
    try:
        model.eval()
    except NotImplementedError:
        traceback.print_exc()  # torch raises the same for an operation that a device lacks
        _put_rest_in_eval_mode(model)


def _put_rest_in_eval_mode(model: torch.nn.Module) -> None:
    for child in model.children():
        if any(module.training for module in child.modules()):
            try:
                child.train(False)
            except NotImplementedError:
                _put_rest_in_eval_mode(child)


def spared(model: torch.nn.Module | None, device: torch.device) -> torch.nn.Module | None:
    """The model, where there is room for it beside another one; None where not.

    A program may remember what it made of weights by where they lie: that is right while the
    weights live, and wrong for others that come to lie there.
    """
    if model is None:
        return None
    held = [*model.parameters(), *model.buffers()]
    if any(torch.nn.parameter.is_lazy(t) for t in held):
        return None
    size = sum(t.numel() * t.element_size() for t in held)  # nbytes raises for sparse ones
    if device.type != "cuda":
        return model if size <= SPARED_BYTES else None
    return model if size <= SPARED_PART * torch.cuda.mem_get_info(device)[0] else None


def main(address: str, device: str) -> None:
    """Serve the judge that listens at `address` until it hangs up.

    What does not depend on the program comes first: a runner may be started ahead of it.
    """
    gc.freeze()  # torch's own objects: each look for garbage would go through all of them
    if device == "cuda":
        place = torch.ones(2, 2, device=device)
        torch.mm(place, place)  # with it the context and cuBLAS's handle
        torch.cuda.synchronize()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.connect(address)
        _, files, _, _ = socket.recv_fds(link, 1, FILES + MAX_LIBRARIES + 1)
    bell, done, page_file, setup_file, *buffers = files[:FILES]
    more = list(files[FILES:])
    with os.fdopen(setup_file, "rb") as file:
        setup = json.loads(file.read())
    page = Page(page_file)
    torch.set_num_threads(setup["threads"])
    cache = more.pop() if setup["cache"] else None
    if setup["libraries"]:
        install(Libraries(setup["libraries"], more).answer)
    runner = Runner(setup, buffers, cache)
    os.write(done, DONE.pack(Code.OK))
    while message := os.read(bell, BELL.size):
        op, source, place, number = BELL.unpack(message)
        os.write(done, DONE.pack(perform(runner, op, source, place, number)))
        if op == Op.WATCH:
            watch(runner, page, setup["spin_cpus"])


def watch(runner: Runner, page: Page, cpus: Sequence[int]) -> None:
    """Serve rings in the page until it says REST."""
    before = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):  # CPUs that a container hides: then anywhere
        os.sched_setaffinity(0, cpus)
    while True:
        asked = page.asked()
        if asked is None:
            continue
        op, place, key = asked
        page.answer(perform(runner, op, Source.STATE, place, key))
        if op == Op.REST:
            os.sched_setaffinity(0, before)
            return


def perform(runner: Runner, op: int, source: int, place: int, number: int) -> Code:
    """Do what was asked; how it went."""
    try:
        return runner.serve(Op(op), Source(source), place, number)
    except BaseException as error:
        if not isinstance(error, Refused):
            traceback.print_exc()
        return code_of(error)

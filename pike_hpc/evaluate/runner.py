"""The shim inside a runner: builds one program from source and serves calls at a doorbell.

The same file runs the reference and a candidate, inside the sandbox, as a script of its own. It
connects to the Unix socket named in argv, receives one byte with six file descriptors and closes
the socket. From then on it shares with the judge only buffers and two pipes: a bell (what to do)
and a done pipe (one byte: a `Code`). It knows no clock, no seed of an input, no expected output.
After the candidate is imported this process belongs to the candidate: nothing here is a defence,
and the judge treats the byte and the buffers as hostile. On CUDA a call copies the shared input to
the device and the outputs back, inside the time that is measured.
"""

from __future__ import annotations

import enum
import gc
import importlib.util
import json
import mmap
import os
import random
import socket
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

BELL = struct.Struct("<BBQ")
"""What the judge rings: an Op, 1 for weights drawn from a seed alone, the constructor's seed."""

FILES = 6
"""bell, done, setup, inputs, outputs, weights: the order of the descriptors."""

ENTRIES = ("ModelNew", "Model")
"""Names of a program's class, the first found counts."""


class Op(enum.IntEnum):
    """What the judge asks for."""

    IMPORT = 1
    LOAD = 2
    """A fresh model, with the weights now in the weights buffer or drawn from the seed."""
    RELOAD = 3
    """The weights now in the buffer into the model that lives."""
    CALL = 4
    NULL = 5
    """Copy the last outputs again, with no model: the constant of the protocol."""
    AGAIN = 6
    """Copy what the last call but one returned: has a later call changed it?"""


class Code(enum.IntEnum):
    """How it went. Everything but OK ends the evaluation, NEED_SEED after one more try."""

    OK = 0
    RAISED = 1
    IMPORT_FAILED = 2
    COMPILE_FAILED = 3
    NO_MODEL = 4
    NOT_A_MODULE = 5
    CONSTRUCTOR_RAISED = 6
    NEED_SEED = 7
    """The weights have no place in this model."""
    PREPARE_RAISED = 8
    OUT_OF_MEMORY = 9
    OUTPUT_TREE = 10
    OUTPUT_TYPE = 11
    OUTPUT_SHAPE = 12
    OUTPUT_DTYPE = 13


class Refused(Exception):
    """An answer that can't be given to the judge."""

    def __init__(self, code: Code) -> None:
        super().__init__(code.name)
        self.code = code


class Runner:
    """One program, its buffers, and what to do for each Op."""

    def __init__(self, setup: dict[str, Any], files: Sequence[int]) -> None:
        self._setup = setup
        self._device = torch.device(setup["device"])
        self._inputs = views(setup["input_slots"], files[0])
        self._outputs = views(setup["output_slots"], files[1])
        self._weights = views(setup["weight_slots"], files[2], private=True)
        self._here = [t.to(self._device) for t in self._inputs]
        self._task: ModuleType | None = None
        self._entry: Any = None
        self._model: Any = None
        self._last: list[list[Any]] = []

    def serve(self, op: Op, by_seed: bool, seed: int) -> None:
        """Do `op`. Raises Refused, or whatever the program raises."""
        if op is Op.IMPORT:
            self._import()
        elif op is Op.LOAD:
            self._load(by_seed, seed)
        elif op is Op.RELOAD:
            self._fit(self._model)
        elif op is Op.CALL:
            self._call()
        elif op is Op.NULL:
            self._copy_in()
            self._copy_out(self._last[-1])
        elif op is Op.AGAIN:
            self._copy_out(self._last[0])

    def _import(self) -> None:
        place = Path(tempfile.mkdtemp(prefix="program-"))
        with phase(Code.IMPORT_FAILED):
            self._task = load_file(place / "task.py", self._setup["task"])
            program = self._task
            if self._setup["candidate"] is not None:
                program = load_file(place / "candidate.py", self._setup["candidate"])
        self._entry = next((getattr(program, n) for n in ENTRIES if hasattr(program, n)), None)
        if self._entry is None:
            raise Refused(Code.NO_MODEL)

    def _load(self, by_seed: bool, seed: int) -> None:
        self._model, self._last = None, []
        gc.collect()
        with phase(Code.CONSTRUCTOR_RAISED):
            arguments = init_inputs(self._task)
            seed_everything(seed)
            model = self._entry(*arguments)
        if not isinstance(model, torch.nn.Module):
            raise Refused(Code.NOT_A_MODULE)
        model = model.eval().to(self._device)
        if by_seed:
            prepare = getattr(model, "prepare", None)
            if prepare is not None:
                with phase(Code.PREPARE_RAISED), torch.inference_mode():
                    prepare(model.state_dict())
        else:
            self._fit(model)
        self._model = model

    def _fit(self, model: torch.nn.Module) -> None:
        """Give the weights a place: strictly by name, by `prepare`, or by shape and order."""
        names = [slot["name"] for slot in self._setup["weight_slots"]]
        state = {n: w.to(self._device) for n, w in zip(names, self._weights, strict=True)}
        own = model.state_dict()
        prepare: Callable[[dict[str, Any]], None] | None = getattr(model, "prepare", None)
        found = state if set(own) == set(state) else None
        if found is None and prepare is None:
            found = by_shape_and_order(own, state)
            if found is None:
                raise Refused(Code.NEED_SEED)
        if found is not None:
            try:
                # A parameter that forward replaced is an inference tensor, written only there.
                with torch.inference_mode():
                    model.load_state_dict(found, strict=True)
            except RuntimeError:
                if prepare is None:
                    raise Refused(Code.NEED_SEED) from None
        if prepare is not None:
            with phase(Code.PREPARE_RAISED), torch.inference_mode():
                prepare({name: w.clone() for name, w in state.items()})

    def _call(self) -> None:
        self._copy_in()
        with torch.inference_mode():
            answer = self._model(*unflatten(self._setup["input_tree"], self._here))
        leaves: list[Any] = []
        flatten(self._setup["output_tree"], answer, leaves)
        self._last = [*self._last[-1:], leaves]
        self._copy_out(leaves)

    def _copy_in(self) -> None:
        if self._device.type != "cpu":
            for there, here in zip(self._inputs, self._here, strict=True):
                here.copy_(there)

    def _copy_out(self, leaves: Sequence[Any]) -> None:
        with torch.inference_mode():
            for slot, leaf in zip(self._outputs, leaves, strict=True):
                slot.copy_(as_tensor(leaf, slot))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class phase:  # noqa: N801 - reads as the statement it is
    """Name the failure of a block, unless it names itself: `with phase(Code.IMPORT_FAILED):`."""

    def __init__(self, code: Code) -> None:
        self._code = code

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and not isinstance(error, Refused):
            traceback.print_exception(kind, error, trace)
            code = code_of(error)
            raise Refused(self._code if code is Code.RAISED else code) from None


def code_of(error: BaseException) -> Code:
    """The code of what a program raised."""
    if isinstance(error, Refused):
        return error.code
    try:
        text = f"{type(error).__module__}.{type(error).__qualname__}: {error}"
    except Exception:  # the program's own __str__
        return Code.RAISED
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        "DefaultCPUAllocator" in text or "Cannot allocate memory" in text
    ):
        return Code.OUT_OF_MEMORY
    if text.startswith(("torch._inductor.", "torch._dynamo.exc.Backend", "triton.compiler.")):
        return Code.COMPILE_FAILED
    return Code.RAISED


def views(slots: Sequence[dict[str, Any]], fd: int, *, private: bool = False) -> list[torch.Tensor]:
    """Tensors over the shared bytes of `fd`, at the same addresses for good."""
    size = os.fstat(fd).st_size
    flags = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
    raw = mmap.mmap(fd, size, flags, mmap.PROT_READ | mmap.PROT_WRITE)
    found = []
    for slot in slots:
        dtype = getattr(torch, slot["dtype"])
        count = slot["count"]
        flat = (
            torch.frombuffer(raw, dtype=dtype, count=count, offset=slot["offset"])
            if count
            else torch.empty(0, dtype=dtype)
        )
        found.append(flat.view(slot["shape"]))
    return found


def unflatten(tree: Any, leaves: Sequence[torch.Tensor]) -> Any:
    """The arguments that `tree` describes, with `leaves` for its tensors."""
    kind, value = tree
    if kind == "tensor":
        return leaves[value]
    if kind == "value":
        return value
    if kind == "dict":
        return {k: unflatten(v, leaves) for k, v in value.items()}
    items = [unflatten(v, leaves) for v in value]
    return tuple(items) if kind == "tuple" else items


def flatten(tree: Any, answer: Any, into: list[Any]) -> None:
    """Append the leaves of an answer. Raises Refused where it is not built like `tree`."""
    kind, value = tree
    if kind == "tensor":
        into.append(answer)
    elif kind == "value":
        if answer is not None:
            raise Refused(Code.OUTPUT_TREE)
    elif kind == "dict":
        if not isinstance(answer, dict) or set(answer) != set(value):
            raise Refused(Code.OUTPUT_TREE)
        for key, branch in value.items():
            flatten(branch, answer[key], into)
    else:
        if not isinstance(answer, tuple if kind == "tuple" else list) or len(answer) != len(value):
            raise Refused(Code.OUTPUT_TREE)
        for branch, item in zip(value, answer, strict=True):
            flatten(branch, item, into)


def as_tensor(leaf: Any, slot: torch.Tensor) -> Any:
    """The leaf, if its bytes may fill the slot: same shape, same kind of number."""
    if isinstance(leaf, (bool, int, float)) and slot.dim() == 0:
        leaf = torch.tensor(leaf)
    if type(leaf) not in (torch.Tensor, torch.nn.Parameter):
        raise Refused(Code.OUTPUT_TYPE)
    if leaf.shape != slot.shape:
        raise Refused(Code.OUTPUT_SHAPE)
    if leaf.is_floating_point() != slot.is_floating_point() or (
        leaf.is_complex() != slot.is_complex()
        or (leaf.dtype == torch.bool) != (slot.dtype == torch.bool)
    ):
        raise Refused(Code.OUTPUT_DTYPE)
    return leaf


def by_shape_and_order(own: dict[str, Any], state: dict[str, Any]) -> dict[str, Any] | None:
    """The k-th weight of a shape goes to the k-th place of that shape; None if counts differ."""

    def groups(tensors: dict[str, Any]) -> dict[tuple[Any, bool], list[str]]:
        found: dict[tuple[Any, bool], list[str]] = {}
        for name, tensor in tensors.items():
            found.setdefault((tuple(tensor.shape), tensor.is_floating_point()), []).append(name)
        return found

    here, there = groups(own), groups(state)
    if {k: len(v) for k, v in here.items()} != {k: len(v) for k, v in there.items()}:
        return None
    return {
        name: state[other]
        for group, names in here.items()
        for name, other in zip(names, there[group], strict=True)
    }


def load_file(path: Path, source: str) -> ModuleType:
    """Import source as a real file, so that tracebacks, inspect and compilers find its text."""
    path.write_bytes(source.encode("utf-8", "surrogatepass"))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def init_inputs(task: Any) -> list[Any]:
    """The constructor's arguments, the same as the judge's: `tasks.load` says in what order."""
    make = getattr(task, "get_init_inputs", list)
    seed_everything(0)
    before = torch.random.get_rng_state()
    values = list(make())
    if torch.equal(before, torch.random.get_rng_state()):
        return values
    seed_everything(0)
    task.get_inputs()
    return list(make())


def seed_everything(seed: int) -> None:
    """Constructors draw the same numbers in every runner and in the judge."""
    random.seed(seed)
    torch.manual_seed(seed)


def main(address: str) -> None:
    """Serve the judge that listens at `address` until it hangs up."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.connect(address)
        _, files, _, _ = socket.recv_fds(link, 1, FILES)
    bell, done, setup_file, *buffers = files
    with os.fdopen(setup_file, "rb") as file:
        setup = json.loads(file.read())
    torch.set_num_threads(setup["threads"])
    runner = Runner(setup, buffers)
    os.write(done, bytes([Code.OK]))
    while message := os.read(bell, BELL.size):
        op, by_seed, seed = BELL.unpack(message)
        code = Code.OK
        try:
            runner.serve(Op(op), bool(by_seed), seed)
        except BaseException as error:
            code = code_of(error)
            if not isinstance(error, Refused):
                traceback.print_exc()
        os.write(done, bytes([code]))


if __name__ == "__main__":
    main(sys.argv[1])

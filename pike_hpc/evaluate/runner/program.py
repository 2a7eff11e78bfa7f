"""A program from its source: import, constructor arguments, random streams."""

from __future__ import annotations

import contextlib
import importlib.util
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

from .classes import adopted, lend

ENTRIES = ("ModelNew", "Model")
"""Names of a program's class, the first found counts."""

TASK = "task"
"""The module of a task's file, which is imported before the program."""


def load_file(path: Path, source: str) -> ModuleType:
    """Import source as a real file, so that tracebacks, inspect and compilers find its text.

    After a task a program: from then on it is given what is of its own classes.
    """
    before = sys.modules.get(TASK) if path.stem != TASK else None
    path.write_bytes(source.encode("utf-8", "surrogatepass"))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    if before is not None:
        lend(before, module)
    return module


def init_inputs(task: Any, device: torch.device) -> list[Any]:
    """The constructor's arguments, the same as the judge's: `tasks.load` says in what order."""
    make = getattr(task, "get_init_inputs", list)
    seed_everything(0)
    before = streams(device)
    values = list(make())
    if all(torch.equal(a, b) for a, b in zip(before, streams(device), strict=True)):
        return adopted(values)
    seed_everything(0)
    task.get_inputs()
    return adopted(list(make()))


def streams(device: torch.device) -> list[torch.Tensor]:
    """Where the random streams stand that factories on `device` draw from."""
    states = [torch.random.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


class Defaults(NamedTuple):
    """What torch makes where a program doesn't say."""

    dtype: torch.dtype
    device: torch.device

    @classmethod
    def now(cls) -> Defaults:
        """Those that hold."""
        return cls(torch.get_default_dtype(), torch.get_default_device())

    def set(self) -> None:
        """Have them hold. Not the device where it is right: one that is set costs every call."""
        torch.set_default_dtype(self.dtype)
        if torch.get_default_device() != self.device:
            torch.set_default_device(self.device)


@contextlib.contextmanager
def same_defaults(inside: Defaults | None = None) -> Iterator[None]:
    """Put torch's defaults back, as `tasks.load` does where the truth is made.

    Args:
        inside: those that hold inside; None where it is those of now.
    """
    before = Defaults.now()
    try:
        if inside is not None:
            inside.set()
        yield
    finally:
        before.set()


def seed_everything(seed: int) -> None:
    """Constructors draw the same numbers in every runner and in the judge."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)

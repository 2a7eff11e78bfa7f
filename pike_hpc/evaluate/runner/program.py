"""A program from its source: import, constructor arguments, random streams."""

from __future__ import annotations

import contextlib
import importlib.util
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

ENTRIES = ("ModelNew", "Model")
"""Names of a program's class, the first found counts."""


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


def init_inputs(task: Any, device: torch.device) -> list[Any]:
    """The constructor's arguments, the same as the judge's: `tasks.load` says in what order."""
    make = getattr(task, "get_init_inputs", list)
    seed_everything(0)
    before = streams(device)
    values = list(make())
    if all(torch.equal(a, b) for a, b in zip(before, streams(device), strict=True)):
        return values
    seed_everything(0)
    task.get_inputs()
    return list(make())


def streams(device: torch.device) -> list[torch.Tensor]:
    """Where the random streams stand that factories on `device` draw from."""
    states = [torch.random.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


@contextlib.contextmanager
def same_defaults() -> Iterator[None]:
    """Put torch's default type and device back, as `tasks.load` does where the truth is made."""
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            torch.set_default_device(device)


def seed_everything(seed: int) -> None:
    """Constructors draw the same numbers in every runner and in the judge."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)

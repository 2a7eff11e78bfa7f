"""Files of a mailbox that count what a file server is asked: calls with a path, and fsyncs."""

import inspect
from collections.abc import Callable
from pathlib import Path

from pike_hpc.mailbox.files import Files

COSTS = {"sync": 2, "server_now_s": 3}
"""Of each operation: opened and fsynced; touched, looked at, removed. The others are one call."""


class CountingFiles(Files):
    """`count` grows with every operation. Nothing waits for the disk."""

    def __init__(self) -> None:
        self.count = 0

    def write_new(self, path: Path, data: bytes, *, durable: bool = True) -> None:
        self.count += 2 if durable else 1
        super().write_new(path, data, durable=False)

    def sync(self, folder: Path) -> None:
        self.count += COSTS["sync"]


def _counted(name: str) -> Callable[..., object]:
    def operation(self: CountingFiles, *paths: Path) -> object:
        self.count += COSTS.get(name, 1)
        return getattr(super(CountingFiles, self), name)(*paths)

    return operation


# Whatever is an operation of the seam, also one that comes later.
for _name, _ in inspect.getmembers(Files, inspect.isfunction):
    if not _name.startswith("_") and _name not in vars(CountingFiles):
        setattr(CountingFiles, _name, _counted(_name))

"""Files of a mailbox on a disk that fails: one chosen step goes wrong, all others are done."""

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NoReturn

from builders.mortal_files import MortalFiles

from pike_hpc.mailbox.files import explained, explained_move

FAULTS = ("ENOSPC", "EDQUOT", "EIO", "EIO done", "ESTALE", "ESTALE done")
"""What the step says. `done`: it was done all the same, as NFS may have it after a lost answer."""


class FaultyFiles(MortalFiles):
    """`plan(n, fault)` spoils the n-th step from now that is made while `armed`, once."""

    def __init__(self, die: Callable[[], NoReturn]) -> None:
        super().__init__(die)
        self.armed = False
        self.met: str | None = None
        """The step that went wrong."""
        self._left: int | None = None
        self._fault = ""

    def plan(self, steps: int, fault: str) -> None:
        """After so many steps one goes wrong."""
        self._left, self._fault = steps, fault

    def forget(self) -> None:
        """All goes well from here."""
        self._left = None

    def _may_fail(
        self, name: str, meaning: AbstractContextManager[None], call: Callable[[], object]
    ) -> None:
        if not self.armed or self._left is None:
            call()
            return
        if self._left > 0:
            self._left -= 1
            call()
            return
        self._left, self.met = None, f"{name}: {self._fault}"
        with meaning:
            if self._fault.endswith("done"):
                call()
            code = getattr(errno, self._fault.split()[0])
            raise OSError(code, os.strerror(code))

    def write_new(self, path: Path, data: bytes, *, durable: bool = True) -> None:
        if self._fault.startswith("ESTALE") or self._fault.endswith("done"):
            super().write_new(path, data, durable=False)  # these are of names, not of data
            return
        write = super().write_new
        self._may_fail("write", explained(path), lambda: write(path, data, durable=False))

    def read(self, path: Path) -> bytes:
        if self._fault != "EIO":
            return super().read(path)
        found: list[bytes] = []
        read = super().read
        self._may_fail("read", explained(path), lambda: found.append(read(path)))
        return found[0]

    def exists(self, path: Path) -> bool:
        if self._fault != "EIO":
            return super().exists(path)
        found: list[bool] = []
        exists = super().exists
        self._may_fail("exists", explained(path), lambda: found.append(exists(path)))
        return found[0]

    def rename(self, source: Path, target: Path) -> None:
        do = super().rename
        self._may_fail("rename", explained_move(source), lambda: do(source, target))

    def rename_new(self, source: Path, target: Path) -> None:
        do = super().rename_new
        self._may_fail("rename_new", explained_move(source), lambda: do(source, target))

    def link(self, source: Path, target: Path) -> None:
        do = super().link
        self._may_fail("link", explained_move(source), lambda: do(source, target))

    def unlink(self, path: Path) -> None:
        do = super().unlink
        self._may_fail("unlink", explained_move(path), lambda: do(path))

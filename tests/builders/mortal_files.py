"""Files of a mailbox whose process dies before its n-th step; a write is torn by it."""

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from pike_hpc.mailbox.files import Files


class MortalFiles(Files):
    """Immortal until `steps_left` is a number; nothing is synchronised, which takes long."""

    def __init__(self, die: Callable[[], NoReturn], steps_left: int | None = None) -> None:
        self._die, self.steps_left = die, steps_left

    def _step(self, name: str, *paths: Path) -> None:
        """Called before each step, with its name and what it is about."""
        if self.steps_left is None:
            return
        if self.steps_left == 0:
            self._die()
        self.steps_left -= 1

    def write_new(self, path: Path, data: bytes, *, durable: bool = True) -> None:
        if self.steps_left == 0:
            super().write_new(path, data[: len(data) // 2], durable=False)
        self._step("write", path)
        super().write_new(path, data, durable=False)

    def sync(self, folder: Path) -> None:
        self._step("sync", folder / "names")

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename", source, target)
        super().rename(source, target)

    def rename_new(self, source: Path, target: Path) -> None:
        self._step("rename_new", source, target)
        super().rename_new(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._step("link", source, target)
        super().link(source, target)

    def unlink(self, path: Path) -> None:
        self._step("unlink", path)
        super().unlink(path)

    def mkdir(self, path: Path) -> None:
        self._step("mkdir", path)
        super().mkdir(path)

    def rmdir(self, path: Path) -> None:
        self._step("rmdir", path)
        super().rmdir(path)

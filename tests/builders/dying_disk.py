"""A disk whose process is killed, for real, before its n-th operation; a write is torn by it."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from pike_hpc.journal import OsDisk

IMPORT = f"""
import sys
sys.path.insert(0, {str(Path(__file__).resolve().parents[1])!r})
from builders.dying_disk import DyingDisk
"""
"""The first lines of a program that is to die."""


class DyingDisk(OsDisk):
    """Does so many operations."""

    def __init__(self, left: int) -> None:
        self.left = left

    def _step(self, last_words: Callable[[], object] = lambda: None) -> None:
        self.left -= 1
        if self.left < 0:
            last_words()
            os.kill(os.getpid(), signal.SIGKILL)

    def create(self, path: Path) -> int:
        self._step()
        return super().create(path)

    def write(self, fd: int, data: bytes, offset: int) -> int:
        write = super().write
        self._step(lambda: write(fd, data[: len(data) // 2], offset))
        return write(fd, data, offset)

    def sync(self, fd: int) -> None:
        self._step()
        super().sync(fd)

    def close(self, fd: int) -> None:
        self._step()
        super().close(fd)

    def replace(self, source: Path, target: Path) -> None:
        self._step()
        super().replace(source, target)

    def sync_folder(self, folder: Path) -> None:
        self._step()
        super().sync_folder(folder)

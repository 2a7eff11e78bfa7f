"""One judging process per GPU and node: two that time on one GPU make each other's verdicts wrong.

The lock is the kernel's (flock), on a file named by the GPU's UUID in a folder of the node. A
kill -9 releases it at once, and nobody can break it under a living holder. It keeps processes
apart, not lanes of one process. The file stays: deleting it would let two hold "the" lock.
Processes that name different folders for scratch do not see each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from pike_hpc.records import TryAgainLater, UsageError

LOCKS = Path("/proc/locks")
_POLL_S = 1.0


class GpuBusy(TryAgainLater):
    """Another process judges on the GPU."""


class GpuLock:
    """A held lock. Made by `take`, given back by `release`, by a with block or by dying."""

    def __init__(self, uuid: str, descriptor: int) -> None:
        self.uuid = uuid
        self._descriptor: int | None = descriptor

    @classmethod
    def take(cls, folder: Path, uuid: str) -> GpuLock:
        """The lock on one GPU, at once.

        Raises:
            GpuBusy: another process holds it; the message names that process.
            UsageError: the folder takes no such file.
        """
        path = folder / f"pike-gpu-{uuid}.lock"
        for _ in range(10):
            descriptor = _open(path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = holder_of(descriptor)
                if holder == os.getpid():
                    return cls(uuid, descriptor)
                os.close(descriptor)
                raise GpuBusy(
                    f"GPU {uuid} is judged on by {describe(holder)}",
                    where=str(path),
                    fix="wait until that process has ended, or name another GPU in "
                    "CUDA_VISIBLE_DEVICES",
                ) from None
            except OSError as error:
                os.close(descriptor)
                raise _no_lock(path, error) from None
            if _still_there(descriptor, path):
                return cls(uuid, descriptor)
            os.close(descriptor)  # cleaned away between opening and locking
        raise GpuBusy("the lock's file vanishes again and again", where=str(path))

    def release(self) -> None:
        """Give it back; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> GpuLock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def take_free(
    folder: Path,
    uuids: Sequence[str],
    *,
    wanted: int,
    wait_s: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[tuple[GpuLock, ...], tuple[GpuBusy, ...]]:
    """(locks on at most `wanted` GPUs, what was said of those that others hold).

    Waits at most `wait_s` for the first; never for more than one.

    Raises:
        GpuBusy: every GPU is in other hands; the message is of the first.
        UsageError: the folder takes no such file.
    """
    end = clock() + wait_s
    while True:
        taken: list[GpuLock] = []
        busy: list[GpuBusy] = []
        for uuid in uuids:
            if len(taken) == wanted:
                break
            try:
                taken.append(GpuLock.take(folder, uuid))
            except GpuBusy as error:
                busy.append(error)
        if taken:
            return tuple(taken), tuple(busy)
        if clock() >= end:
            raise busy[0]
        sleep(_POLL_S)


def holder_of(descriptor: int, locks: Path = LOCKS) -> int | None:
    """Pid of the process that flocked this file, as the kernel says; None where it won't."""
    status = os.fstat(descriptor)
    name = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with contextlib.suppress(OSError, ValueError):
        for line in locks.read_text("ascii", "replace").splitlines():
            words = line.split()
            if len(words) >= 6 and words[1] == "FLOCK" and words[5] == name:
                return int(words[4]) if int(words[4]) > 0 else None
    return None


def describe(pid: int | None) -> str:
    """A process as a person knows it."""
    if pid is None:
        return "another process (the kernel does not say which: ps -ef, nvidia-smi)"
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        line = " ".join(" ".join(word for word in words if word).split())
        if line:
            return f"process {pid} ({line[:120]})"
    return f"process {pid}"


def _open(path: Path) -> int:
    """A descriptor for reading, which is all that flock needs: the file may be another user's."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        for _ in range(10):
            with contextlib.suppress(FileNotFoundError):
                return os.open(path, flags)
            with contextlib.suppress(FileExistsError):
                made = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
                os.fchmod(made, 0o644)
                return made
    except OSError as error:
        raise _no_lock(path, error) from None
    raise GpuBusy("the lock's file comes and goes", where=str(path))


def _still_there(descriptor: int, path: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    return False


def _no_lock(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot lock the GPU: {error.strerror}",
        where=str(path),
        valid="a node-local folder that every user of the node can write, such as /tmp",
        fix="set paths.tmp of the site",
    )

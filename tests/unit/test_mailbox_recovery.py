"""Whose claims a janitor takes, where a file system shows it less than there is."""

import errno
import os

import pytest

from pike_hpc.mailbox import FileMailbox, WorkerBeat
from pike_hpc.mailbox.files import Files, explained
from pike_hpc.records import EvalRequest, PikeError, Task, TryAgainLater

CPU = frozenset({"cpu"})
STALE_S = 60.0
TASK = Task(suite="s", id="1", name="one", source="x")
ONE = EvalRequest(task=TASK, candidate_source="", device_kind="cpu", image_digest="i")


class Observer:
    """A worker that judges elsewhere, and a janitor that sees it through files of its own."""

    def __init__(self, root, files):
        self.now_s, self._counter = 0.0, 0
        self._worker = FileMailbox(root, clock=lambda: self.now_s)
        self.mailbox = FileMailbox(root, clock=lambda: self.now_s, files=files)
        self._worker.put(ONE)
        self.beat()
        (claim,) = self._worker.claim("w", CPU)
        assert self._worker.judging(claim)

    def beat(self):
        self._counter += 1
        self._worker.beat(
            WorkerBeat(
                worker_id="w",
                host="elsewhere",
                pid=1,
                start_token="t",
                counter=self._counter,
                state="judging",
                device_kind="cpu",
                started_at=0.0,
            )
        )

    def sweep(self, *, after_s=15.0, beats=True):
        self.now_s += after_s
        if beats:
            self.beat()
        return self.mailbox.requeue_lost(stale_s=STALE_S, is_alive=lambda beat: None)


class Unseen(Files):
    """An NFS client that finds a beat's old file gone while another takes its name."""

    code = 0

    def read(self, path):
        if self.code and path.parent.name == "workers":
            with explained(path):
                raise OSError(self.code, os.strerror(self.code))
        return super().read(path)


@pytest.mark.parametrize("code", [errno.ESTALE, errno.ENOENT])
def test_looks_that_miss_a_living_worker_s_beat_take_nothing(tmp_path, code):
    files = Unseen()
    observer = Observer(tmp_path, files)
    for look in range(100):
        files.code = code if look % 4 else 0
        assert observer.sweep() == 0


def test_a_beat_that_stays_unreadable_keeps_no_claim(tmp_path):
    observer = Observer(tmp_path, Files())
    assert [observer.sweep() for _ in range(20)] == [0] * 20
    (path,) = (tmp_path / "workers").iterdir()
    path.write_text("{")
    assert [observer.sweep(beats=False) for _ in range(5)] == [0, 0, 0, 0, 1]


class Full(Files):
    """A disk on which no byte is left, or what else keeps all from writing."""

    code = 0

    def write_new(self, path, data, *, durable=True):
        if self.code and data:
            with explained(path):
                raise OSError(self.code, os.strerror(self.code))
        super().write_new(path, data, durable=durable)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("lock", ["flock", "claims"])
def test_where_nobody_can_write_nobody_is_lost_and_time_counts_anew_from_then(tmp_path, code, lock):
    FileMailbox(tmp_path, lock=lock)
    files = Full()
    observer = Observer(tmp_path, files)
    assert [observer.sweep() for _ in range(3)] == [0, 0, 0]
    files.code = code
    for _ in range(40):  # ten minutes
        with pytest.raises(PikeError):
            observer.sweep(beats=False)
    files.code = 0
    assert [observer.sweep(beats=False) for _ in range(5)] == [0, 0, 0, 0, 1], "a minute without"
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_claim_without_a_beat_counts_anew_too(tmp_path):
    files = Full()
    observer = Observer(tmp_path, files)
    (path,) = (tmp_path / "workers").iterdir()
    path.unlink()
    assert observer.sweep(beats=False) == 0
    files.code = errno.ENOSPC
    with pytest.raises(TryAgainLater, match="no space left"):
        observer.sweep(after_s=100, beats=False)
    files.code = 0
    assert [observer.sweep(beats=False) for _ in range(5)] == [0, 0, 0, 0, 1]

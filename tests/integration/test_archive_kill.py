"""An archive is replaced whole or not at all: killed, and out of space, at every disk operation."""

import errno
import subprocess
import sys

import pytest
from builders import dying_disk

from pike_hpc.archive import is_current, read, rebuild, verify
from pike_hpc.journal import OsDisk, TaskJournal
from pike_hpc.records import (
    Candidate,
    EvalResult,
    EvalStatus,
    Evaluated,
    Finished,
    Proposal,
    Proposed,
    ResultKey,
    Task,
    TaskOpened,
    TryAgainLater,
)

MAKER = f"""{dying_disk.IMPORT}
from pathlib import Path
from pike_hpc.archive import rebuild

rebuild(Path(sys.argv[1]), disk=DyingDisk(int(sys.argv[2])))
"""


class FullDisk(OsDisk):
    def __init__(self, operation):
        self.operation = operation

    def write(self, fd, data, offset):
        if self.operation == "write":
            super().write(fd, data[: len(data) // 2], offset)
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(fd, data, offset)

    def sync(self, fd):
        if self.operation == "sync":
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        super().sync(fd)

    def replace(self, source, target):
        if self.operation == "replace":
            raise OSError(errno.EIO, "Input/output error")
        super().replace(source, target)


class RottingDisk(OsDisk):
    """Stores one bit wrong and says nothing."""

    def write(self, fd, data, offset):
        altered = bytearray(data)
        altered[len(data) // 2] ^= 1
        return super().write(fd, bytes(altered), offset)


TASK = Task(suite="s", id="1", name="n", source="x")


def add(run, *events):
    with TaskJournal.open(run, "s_1", writer="w", seed=0, clock=lambda: 1.0) as journal:
        for event in events:
            journal.append(event)


@pytest.fixture
def run(tmp_path):
    add(tmp_path, TaskOpened(task=TASK, device_kind="cpu"))
    rebuild(tmp_path)
    for number in range(30):
        source = f"program {number}"
        candidate = Candidate(task_digest=TASK.digest, source=source)
        key = ResultKey(
            task_digest=TASK.digest, candidate_id=candidate.id, device_kind="cpu", image_digest=""
        )
        proposal = Proposal(candidate_id=candidate.id, operator="rule:x")
        add(
            tmp_path,
            Proposed(node=str(number), proposal=proposal, source=source),
            Evaluated(result=EvalResult(key=key, status=EvalStatus.WRONG_RESULT)),
        )
    add(tmp_path, Finished(reason="done"))
    return tmp_path


def test_killed_at_every_operation_the_archive_is_the_old_or_the_new_one(run):
    old = (run / "archive.h5").read_bytes()
    new = None
    for left in range(9):
        (run / "archive.h5").write_bytes(old)
        maker = subprocess.run(
            [sys.executable, "-c", MAKER, str(run), str(left)], timeout=60, check=False
        )
        assert maker.returncode in (0, -9)
        assert verify(run / "archive.h5") == ()
        found = (run / "archive.h5").read_bytes()
        if is_current(run):
            new = new or found
            assert found == new
        else:
            assert found == old
            assert maker.returncode == -9
        # The same command again, whatever the dead maker left behind.
        rebuild(run)
        assert is_current(run)
        assert not (run / "archive.h5.new").exists()
    assert maker.returncode == 0, "the range of operations no longer covers a whole build"
    assert len(read(run / "archive.h5").tasks[0].results) == 30


@pytest.mark.parametrize("operation", ["write", "sync", "replace"])
def test_a_full_disk_leaves_the_old_archive_and_no_litter(run, operation):
    old = (run / "archive.h5").read_bytes()
    with pytest.raises(TryAgainLater, match="next:"):
        rebuild(run, disk=FullDisk(operation))
    assert (run / "archive.h5").read_bytes() == old
    assert not (run / "archive.h5.new").exists()
    rebuild(run)
    assert is_current(run)


def test_what_was_stored_wrong_never_becomes_the_archive(run):
    old = (run / "archive.h5").read_bytes()
    with pytest.raises(Exception, match="reads back wrong"):
        rebuild(run, disk=RottingDisk())
    assert (run / "archive.h5").read_bytes() == old


def test_makers_at_the_same_time_all_succeed(run):
    makers = [subprocess.Popen([sys.executable, "-c", MAKER, str(run), "1000"]) for _ in range(3)]
    assert [maker.wait(timeout=120) for maker in makers] == [0, 0, 0]
    assert verify(run / "archive.h5") == ()
    assert is_current(run)

"""Locks of a mailbox: which kind, and what a machine does that has none."""

import errno
import os
from pathlib import Path

import pytest
from filelock import BaseFileLock, UnixFileLock

from pike_hpc.mailbox import FileMailbox
from pike_hpc.mailbox.locks import acquired, choose_lock, held
from pike_hpc.records import EvalRequest, Task

MOUNTS = """\
21 1 0:20 / / rw,relatime - ext4 /dev/sda rw
22 21 0:21 / /home rw - nfs4 server:/home rw,vers=4.2
23 21 0:22 / /scratch rw,flock - lustre mds:/scratch rw,flock
24 21 0:23 / /old rw - lustre mds:/old rw,localflock
25 21 0:24 / /with\\040space rw - fuse.sshfs host:/ rw
26 22 0:25 / /home/me/local rw - xfs /dev/sdb rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home/me", "claims"),
        ("/old/x", "claims"),
        ("/with space/x", "claims"),
    ],
)
def test_on_file_systems_that_may_not_exclude_the_lock_is_the_strict_one(tmp_path, folder, kind):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert choose_lock(Path(folder), "n", mounts) == kind


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("- lustre mds:/s rw,flock", "flock"),
        ("- lustre mds:/s rw", "claims"),
        ("- xfs /dev/s rw", "flock"),
        ("- nfs server:/s rw", "claims"),
        ("- nfs4 server:/s rw,vers=4.2", "claims"),
        ("- gpfs s rw", "flock"),
        ("- wekafs s rw", "flock"),
        ("- ceph mon:/s rw", "flock"),
        *((f"- {k} s rw", "claims") for k in ("dvs", "fuse", "afs", "9p", "cifs", "beegfs")),
    ],
)
def test_flock_is_used_where_it_really_excludes(tmp_path, line, kind):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"21 1 0:20 / / rw {line}\n")
    assert choose_lock(tmp_path, "n", mounts) == kind


class Refused(BaseFileLock):
    """As the kernel of a client answers flock that knows no locks."""

    code = 0

    def _acquire(self) -> None:
        raise OSError(self.code, os.strerror(self.code))

    def _release(self) -> None:
        """Never held."""


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, 524, errno.ESTALE])
def test_a_machine_without_locks_goes_on_without(tmp_path, code):
    lock = Refused(tmp_path / "lock")
    lock.code = code
    assert acquired(lock, 0) is False
    assert not lock.is_locked


def test_claims_that_nobody_can_read_are_no_lock(tmp_path):
    """Filelock says the same where it can't make a claim: without hard links."""
    with held("claims", tmp_path / "lock", 0) as mine:
        assert mine
    (tmp_path / "lock.filelock/claims/strange").touch()
    with held("claims", tmp_path / "lock", 0) as mine:
        assert not mine


def test_what_is_no_matter_of_locks_is_said(tmp_path):
    lock = Refused(tmp_path / "lock")
    lock.code = errno.EACCES
    with pytest.raises(OSError, match="Permission denied"):
        acquired(lock, 0)


def test_one_of_two_has_the_lock(tmp_path):
    first, second = (UnixFileLock(tmp_path / "lock", is_singleton=False) for _ in range(2))
    assert acquired(first, 0) is True
    assert acquired(second, 0) is False
    first.release()
    assert acquired(second, 0) is True
    second.release()


def test_one_janitor_is_at_work_and_one_that_died_with_its_lock_is_not_waited_for(tmp_path):
    now_s = [0.0]
    mailbox = FileMailbox(tmp_path, lock="flock", clock=lambda: now_s[0])
    task = Task(suite="s", id="1", name="one", source="x")
    mailbox.put(EvalRequest(task=task, candidate_source="", device_kind="cpu", image_digest="i"))
    assert len(mailbox.claim("gone", frozenset({"cpu"}))) == 1

    def swept(after_s: float) -> int:
        now_s[0] += after_s
        return mailbox.requeue_lost(stale_s=60, is_alive=lambda beat: None)

    assert swept(0) == 0
    with held("flock", tmp_path / "locks" / "janitor", 0) as elected:
        assert elected
        assert swept(61) == 0, "another one sweeps"
        assert swept(30) == 0
        assert swept(31) == 1, "nobody needs that long"
    assert mailbox.counts().new == 1

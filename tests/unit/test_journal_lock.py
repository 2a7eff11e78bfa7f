import errno
import os
import subprocess
import sys

import pytest

from pike_hpc.journal import LockKind, WriterLock, choose_lock
from pike_hpc.journal.disk import OsDisk
from pike_hpc.journal.holder import read_holder
from pike_hpc.journal.lock import agreed
from pike_hpc.records import TryAgainLater, UsageError

HOLD = """
import sys, time
from pathlib import Path
from pike_hpc.journal import LockKind, WriterLock
lock = WriterLock.take(Path(sys.argv[1]), writer="child", clock=time.time,
                       kind=LockKind(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


def take(path, kind, **options):
    return WriterLock.take(path, writer="me", clock=lambda: 7.0, kind=kind, **options)


@pytest.fixture(params=list(LockKind))
def kind(request):
    return request.param


@pytest.fixture
def child(tmp_path, kind):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "x.lock"), kind.value],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_living_holder_is_not_broken(tmp_path, kind, child):
    for _ in range(3):
        with pytest.raises(TryAgainLater, match=f"child \\(process {child.pid} on "):
            take(tmp_path / "x.lock", kind)


def test_a_living_holder_outlasts_the_wait(tmp_path, kind, child):
    with pytest.raises(TryAgainLater, match="locked by child"):
        take(tmp_path / "x.lock", kind, wait_s=0.2)


def test_kill_9_lets_the_next_one_in(tmp_path, kind, child):
    child.kill()
    child.wait()
    with take(tmp_path / "x.lock", kind), pytest.raises(TryAgainLater, match="me"):
        take(tmp_path / "x.lock", kind)


def test_release_lets_the_next_one_in(tmp_path, kind):
    first = take(tmp_path / "x.lock", kind)
    first.release()
    first.release()
    take(tmp_path / "x.lock", kind).release()


def test_a_holder_elsewhere_is_never_taken_for_dead(tmp_path, child, kind):
    sidecar = tmp_path / "x.lock.holder"
    child.kill()
    child.wait()
    if kind is LockKind.FLOCK:
        return
    boot = read_holder(sidecar).boot_id
    sidecar.write_text(sidecar.read_text().replace(boot, "another-boot"))
    with pytest.raises(TryAgainLater, match="locked by child"):
        take(tmp_path / "x.lock", kind)


def test_claims_of_others_stay_when_the_sidecar_is_stale(tmp_path):
    with take(tmp_path / "x.lock", LockKind.CLAIMS):
        sidecar = tmp_path / "x.lock.holder"
        text = sidecar.read_text()
        dead = subprocess.Popen([sys.executable, "-c", ""])
        dead.wait()
        sidecar.write_text(text.replace(f'"pid":{os.getpid()}', f'"pid":{dead.pid}'))
        with pytest.raises(TryAgainLater):
            take(tmp_path / "x.lock", LockKind.CLAIMS)


def mount(fstype, options, point):
    return f"30 1 0:1 / {point} rw,relatime shared:1 - {fstype} dev {options}\n"


@pytest.mark.parametrize(
    ("fstype", "options", "expected"),
    [
        ("ext4", "rw", LockKind.FLOCK),
        ("nfs4", "rw,vers=4.2,local_lock=none", LockKind.FLOCK),
        ("nfs", "rw,vers=3,nolock", LockKind.CLAIMS),
        ("nfs", "rw,vers=3,local_lock=all", LockKind.CLAIMS),
        ("lustre", "rw,flock,lazystatfs", LockKind.FLOCK),
        ("lustre", "rw,localflock", LockKind.CLAIMS),
        ("lustre", "rw", LockKind.CLAIMS),
        ("gpfs", "rw", LockKind.FLOCK),
        ("wekafs", "rw", LockKind.FLOCK),
        ("ceph", "rw", LockKind.FLOCK),
        *((kind, "rw", LockKind.CLAIMS) for kind in ("dvs", "fuse.sshfs", "fuse", "afs", "9p")),
        *((kind, "rw", LockKind.CLAIMS) for kind in ("cifs", "smb3", "beegfs")),
    ],
)
def test_the_mount_decides(tmp_path, fstype, options, expected):
    folder = tmp_path / "with space"
    folder.mkdir()
    point = str(folder).replace(" ", "\\040")
    table = mount("ext4", "rw", "/") + mount(fstype, options, point) + "garbage\n"
    assert choose_lock(folder, table) is expected
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("other", list(LockKind))
def test_all_locks_of_a_folder_are_of_the_first_one_s_kind(tmp_path, other):
    """A compute node whose mount has no flock came first; a login node that has it follows."""
    assert agreed(tmp_path, LockKind.CLAIMS) is LockKind.CLAIMS
    assert agreed(tmp_path, other) is LockKind.CLAIMS
    lock = WriterLock.take(tmp_path / "t.lock", writer="one", clock=lambda: 1.0)
    with lock, pytest.raises(TryAgainLater):
        take(tmp_path / "t.lock", LockKind.CLAIMS)


def test_a_node_that_cannot_take_the_others_locks_says_so_and_what_to_type(tmp_path):
    assert agreed(tmp_path, LockKind.FLOCK) is LockKind.FLOCK
    with pytest.raises(UsageError, match="can't keep the others out") as caught:
        agreed(tmp_path, LockKind.CLAIMS)
    subprocess.run(
        (caught.value.fix or "").partition(": ")[2].partition(",")[0], shell=True, check=True
    )
    assert agreed(tmp_path, LockKind.CLAIMS) is LockKind.CLAIMS
    assert agreed(tmp_path, LockKind.FLOCK) is LockKind.CLAIMS


class Watched(OsDisk):
    """Notes what was done before the note had its name, and may be full."""

    def __init__(self, note, code=0):
        self._note, self._code, self.before = note, code, []

    def write(self, fd, data, offset):
        if self._code:
            raise OSError(self._code, os.strerror(self._code))
        self.before += [] if self._note.exists() else ["write"]
        return super().write(fd, data, offset)

    def sync(self, fd):
        self.before += [] if self._note.exists() else ["sync"]
        super().sync(fd)

    def close(self, fd):
        self.before += [] if self._note.exists() else ["close"]
        super().close(fd)


def test_the_note_has_its_text_on_disk_before_it_has_its_name(tmp_path):
    disk = Watched(tmp_path / ".kind")
    assert agreed(tmp_path, LockKind.FLOCK, disk) is LockKind.FLOCK
    assert disk.before == ["write", "sync", "close"]
    assert [path.name for path in tmp_path.iterdir()] == [".kind"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_where_it_cannot_be_noted_nothing_is_agreed_nor_left_behind(tmp_path, code):
    with pytest.raises(OSError, match=os.strerror(code)):
        agreed(tmp_path, LockKind.FLOCK, Watched(tmp_path / ".kind", code))
    assert list(tmp_path.iterdir()) == []


def test_a_note_that_is_no_text_is_refused_with_its_place(tmp_path):
    agreed(tmp_path, LockKind.FLOCK)
    (note,) = tmp_path.iterdir()
    note.write_bytes(b"\xff\x00\xb3" * 100)
    with pytest.raises(UsageError, match="no kind of lock is called") as caught:
        agreed(tmp_path, LockKind.FLOCK)
    assert caught.value.where == str(note)

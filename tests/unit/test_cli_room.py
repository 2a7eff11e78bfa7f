"""A run without room for its files: what `status` says, and when waiting ends.

A disk that is really full: tests/cluster/test_outages.py.
"""

import errno
import os

from builders.simulated_run import make_run

from pike_hpc.cli.file_age import FileAges
from pike_hpc.cli.room import await_room, no_room, tells_of_no_room
from pike_hpc.cli.status import document

FEW = 'tasks: {suite: level0, ids: "1"}\nsearch: {strategy: rules}\n'


def test_only_a_full_disk_and_a_used_up_quota_are_waited_for():
    for code in (errno.ENOSPC, errno.EDQUOT):
        assert tells_of_no_room(f"cannot append to the journal: {os.strerror(code)}\n  where: x")
    for code in (errno.EIO, errno.EACCES):
        assert not tells_of_no_room(os.strerror(code))


def test_who_waits_says_so_until_there_is_room(tmp_path):
    run = make_run(tmp_path / "here", FEW)
    (run.dir / "slurm").mkdir()
    notes = []

    def sleep(seconds):
        assert seconds > 0
        notes.extend(document(run, ())["notes"])

    assert await_room(run.dir, lambda: True, sleep)
    assert notes == ["no space left for the run: workers and agents go on once there is some"]
    assert document(run, ())["notes"] == []
    assert not list((run.dir / "slurm").iterdir()), "neither the mark nor the probe stays"


def test_who_is_told_to_leave_waits_no_longer(tmp_path):
    assert not await_room(tmp_path, lambda: False, lambda _: None)


def test_an_old_mark_says_nothing(tmp_path):
    (tmp_path / "slurm").mkdir()
    mark = tmp_path / "slurm" / "no-room"
    mark.touch()
    assert no_room(tmp_path, FileAges(tmp_path))
    os.utime(mark, (1000.0, 1000.0))
    assert no_room(tmp_path, FileAges(tmp_path, now_s=1010.0)), "by the clock that stamped it"
    assert no_room(tmp_path, FileAges(tmp_path)) == ""

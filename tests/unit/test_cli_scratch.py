"""Scratch of a killed process is swept by the next; a living one's, and a stranger's, never."""

import os
import subprocess
import sys

from pike_hpc.cli.lanes import sweep
from pike_hpc.machine import start_ticks


def test_only_the_scratch_of_the_dead_goes(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    ticks = start_ticks(gone.pid)
    gone.wait()
    dead = tmp_path / f"pike-{gone.pid}-{ticks}-abc"
    living = tmp_path / f"pike-{os.getpid()}-{start_ticks(os.getpid())}-abc"
    other = tmp_path / "pike-notes-of-mine"
    link = tmp_path / f"pike-{gone.pid}-{ticks}-link"
    for folder in (dead, living, other):
        (folder / "inside").mkdir(parents=True)
    link.symlink_to(other)
    sweep(tmp_path)
    assert not dead.exists()
    assert living.exists()
    assert (other / "inside").exists()
    assert link.is_symlink()

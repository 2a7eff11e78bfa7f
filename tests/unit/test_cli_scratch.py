"""Scratch of a killed process is swept by the next; a living one's, and a stranger's, never."""

import os
import subprocess
import sys

from pike_hpc.cli.lanes import owner_name, sweep


def test_only_the_scratch_of_the_dead_goes(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    owner = owner_name(gone.pid)
    gone.wait()
    dead = tmp_path / f"pike-{owner}-abc"
    living = tmp_path / f"pike-{owner_name(os.getpid())}-abc"
    elsewhere = tmp_path / f"pike-7{owner}-abc"
    other = tmp_path / "pike-notes-of-mine"
    link = tmp_path / f"pike-{owner}-link"
    for folder in (dead, living, elsewhere, other):
        (folder / "inside").mkdir(parents=True)
    link.symlink_to(other)
    sweep(tmp_path)
    assert not dead.exists()
    assert living.exists()
    assert elsewhere.exists(), "of another PID namespace: it may live there"
    assert (other / "inside").exists()
    assert link.is_symlink()

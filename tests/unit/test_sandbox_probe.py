"""What a measurement that was killed leaves, and who takes it away."""

import os
import time

from pike_hpc.sandbox.probe import forget_killed


def made(path, hours):
    """A file that was written so long ago."""
    path.write_text("pike-probe-1", encoding="ascii")
    then = time.time() - 3600 * hours
    os.utime(path, (then, then))
    return path


def test_only_old_files_of_ours_go(tmp_path):
    killed = made(tmp_path / ".pike-probe-1", 2)
    others = made(tmp_path / ".pike-probe-2", 0.5), made(tmp_path / ".bashrc", 2)
    outside = made(tmp_path / "outside", 2)
    link, folder = tmp_path / ".pike-probe-3", tmp_path / ".pike-probe-4"
    link.symlink_to(outside)
    folder.mkdir()
    os.utime(folder, (0, 0))
    os.utime(link, (0, 0), follow_symlinks=False)
    forget_killed(tmp_path, ".pike-probe-*")
    assert not killed.exists()
    assert all(path.exists() for path in (*others, outside, link, folder))


def test_a_folder_that_is_not_there_has_none(tmp_path):
    forget_killed(tmp_path / "nowhere", "*")

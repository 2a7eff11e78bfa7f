"""`make devcluster` itself: safe to repeat, and careful where it is not at home."""

import subprocess

from builders.devcluster import REPO

UP, DOWN = (str(REPO / f"tests/cluster/rig/{name}.sh") for name in ("up", "down"))


def test_a_second_time_it_says_that_it_is_up(slurm):
    done = subprocess.run([UP], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "already up" in done.stderr


def test_without_root_nothing_is_done(slurm):
    for program in (UP, DOWN):
        done = slurm.tried(program)
        assert done.returncode == 1
        assert "needs root" in done.stderr


def test_a_slurm_that_is_not_ours_is_left_alone(slurm, tmp_path):
    """Where /etc/slurm holds somebody else's settings, in a mount namespace of the test's."""
    (tmp_path / "slurm.conf").write_text("ClusterName=production\n")
    for program in (UP, DOWN):
        script = f"mount --bind {tmp_path} /etc/slurm && exec {program}"
        argv = ["unshare", "--mount", "sh", "-c", script]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "is not ours" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["slurm.conf"]
    assert slurm.administer("sinfo", "-h", "-o", "%D %t") == "4 idle"

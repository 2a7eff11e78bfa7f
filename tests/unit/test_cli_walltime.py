"""When a job ends, as far as anybody tells."""

import pytest
from builders.fake_slurm import FakeSlurm

from pike_hpc.cli.walltime import drain_s, walltime_end


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    fake = FakeSlurm(tmp_path)
    monkeypatch.setenv("PATH", f"{fake.programs}:/usr/bin:/bin")
    return fake


def end(**environ):
    return walltime_end(60, environ, wall=lambda: 1000.0)


def test_outside_of_jobs_there_is_none(cluster):
    assert end() is None


def test_newer_slurms_tell_it_by_a_variable(cluster):
    assert end(SLURM_JOB_ID="7", SLURM_JOB_END_TIME="5000") == 5000.0


def test_older_ones_are_asked(cluster):
    cluster.program("squeue", '[ "$*" = "-h -j 7 -o %L" ] && echo 10:00')
    assert end(SLURM_JOB_ID="7") == 1600.0


def test_where_slurm_is_silent_the_site_says_how_long_jobs_are(cluster):
    cluster.put("squeue-down")
    assert end(SLURM_JOB_ID="7") == 1000.0 + 60 * 60


def test_requests_are_given_back_before_the_kill():
    assert [drain_s(wait) for wait in (5.0, 10.0, 30.0, 90.0)] == [0.0, 0.0, 20.0, 80.0]

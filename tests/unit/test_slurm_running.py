"""Whether workers' jobs run: squeue's word, and nothing where it is silent."""

import pytest
from builders.fake_slurm import FakeSlurm

from pike_hpc.slurm import own_job, still_run


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    fake = FakeSlurm(tmp_path)
    monkeypatch.setenv("PATH", f"{fake.programs}:/usr/bin:/bin")
    return fake


@pytest.mark.parametrize(
    ("word", "runs"),
    [
        *((word, True) for word in ("RUNNING", "SUSPENDED", "A_WORD_OF_LATER_VERSIONS")),
        *((word, False) for word in ("CANCELLED", "NODE_FAIL", "COMPLETED", "TIMEOUT")),
        # It had run: so it was queued again.
        *((word, False) for word in ("PENDING", "CONFIGURING", "REQUEUE_HOLD")),
        ("COMPLETING", None),
    ],
)
def test_a_job_runs_or_has_ended(cluster, word, runs):
    cluster.put("queue", f"7_1|{word}\n")
    assert still_run(["7_1"]) == {"7_1": runs}


def test_what_squeue_no_longer_knows_has_ended(cluster):
    cluster.put("queue", "8|RUNNING\n")
    assert still_run({"7_1.0", "9"}) == {"7_1.0": False, "9": False}
    cluster.program("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert still_run(["9"]) == {"9": False}


def test_a_step_may_end_before_its_job(cluster):
    steps = "printf '7_1.0\\n7_1.batch\\n8.0\\n'"
    jobs = "printf '7_1|RUNNING\\n7_2|RUNNING\\n8|CANCELLED\\n'"
    log = 'echo "$*" >> \'' + str(cluster.folder / "asked") + "'"
    cluster.program("squeue", f"{log}; case \"$*\" in *' -s '*) {steps};; *) {jobs};; esac")
    assert still_run(["7_1.0", "7_2.0", "7_2", "8.0"]) == {
        "7_1.0": True,
        "7_2.0": False,
        "7_2": True,
        "8.0": False,
    }
    assert len(cluster.lines("asked")) == 2


def test_where_squeue_is_silent_only_an_end_in_the_accounts_counts(cluster):
    cluster.put("squeue-down")
    cluster.put("accounts", "1|RUNNING\n2|COMPLETED\n3|NODE_FAIL\n")
    assert still_run(["1", "2", "3.0", "4"]) == {"1": None, "2": False, "3.0": None, "4": None}
    cluster.put("sacct-down")
    assert still_run(["1", "2"]) == {"1": None, "2": None}


def test_nothing_is_asked_about_no_job(cluster):
    assert still_run([]) == {}
    assert cluster.lines("asked") == []


def test_without_slurm_nothing_is_known(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert still_run(["1.0"]) == {"1.0": None}


@pytest.mark.parametrize(
    ("environ", "own"),
    [
        ({}, (None, 0)),
        ({"SLURM_JOB_ID": "12"}, ("12", 0)),
        ({"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0"}, ("12.0", 0)),
        (
            {"SLURM_JOB_ID": "14", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "4"}
            | {"SLURM_STEP_ID": "1", "SLURM_RESTART_COUNT": "2"},
            ("12_4.1", 2),
        ),
    ],
)
def test_a_process_knows_its_own_job(environ, own):
    assert own_job(environ) == own

"""Slurm's programs are asked once, and whatever they do, there is an answer."""

import pytest
from builders.fake_slurm import FakeSlurm

from pike_hpc.records import TryAgainLater
from pike_hpc.slurm import (
    UNKNOWN,
    ask,
    cancel,
    find,
    kill_wait_s,
    max_array_size,
    time_left_s,
    used_s,
)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    fake = FakeSlurm(tmp_path)
    monkeypatch.setenv("PATH", f"{fake.programs}:/usr/bin:/bin")
    return fake


def words(*jobs):
    return [state.word for state in ask(jobs).values()]


def test_one_call_for_all_jobs_and_none_for_no_job(cluster):
    assert ask(()) == {}
    cluster.put("queue", "1_[0-2%4]|PENDING|Priority\n2|RUNNING|None\n")
    assert words("1_0", "1_1", "1_2", "2") == ["PENDING"] * 3 + ["RUNNING"]
    assert cluster.lines("asked") == ["-h -t all -o %i|%T|%r -j 1,2"]


def test_sacct_is_asked_for_what_squeue_no_longer_knows(cluster):
    cluster.put("accounts", "1|TIMEOUT\n2|COMPLETED\n")
    assert words("1", "2") == ["TIMEOUT", "COMPLETED"]
    assert cluster.lines("asked")[1:] == ["-n -P -X -o JobID,State -j 1,2"]


def test_a_single_job_that_squeue_forgot_has_ended(cluster):
    error = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    cluster.program("squeue", error)
    cluster.put("sacct-down")
    assert words("1") == ["GONE"]


def test_what_a_person_set_for_slurm_hides_no_job(cluster, monkeypatch):
    for name in ("SQUEUE_PARTITION", "SACCT_FORMAT", "SCANCEL_STATE", "SLURM_CLUSTERS"):
        monkeypatch.setenv(name, "other")
    monkeypatch.setenv("SLURM_BITSTR_LEN", "64")
    monkeypatch.setenv("SLURM_CONF", "mine")
    cluster.program("squeue", "echo \"1|RUNNING|$(env | grep -E '^S(Q|A|C|L)' | sort | xargs)\"")
    assert ask(["1"])["1"].reason == "SLURM_BITSTR_LEN=0 SLURM_CONF=mine"


@pytest.mark.parametrize(
    "script",
    ["exit 1", "kill -9 $$", "echo 'CLUSTER: a'; exit 3", "printf '\\377\\376|x'; exit 1"],
)
def test_a_squeue_that_fails_leaves_it_unknown(cluster, script):
    cluster.program("squeue", script)
    cluster.put("sacct-down")
    assert words("1") == [UNKNOWN]


def test_without_slurm_it_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert words("1") == [UNKNOWN]
    assert max_array_size() == 1001


def test_a_squeue_that_hangs_is_left(cluster):
    cluster.program("squeue", "exec sleep 600")
    cluster.put("accounts", "1|COMPLETED\n")
    # The limit is sacct's too, which has to answer within it.
    assert ask(["1"], timeout_s=2)["1"].word == "COMPLETED"


def test_an_array_is_cancelled_whole(cluster):
    cluster.put("queue", "12_[1-3%4]|PENDING|Priority\n12_0|RUNNING|None\n1|RUNNING|None\n")
    cancel(["12_0", "12_1"])
    assert (
        cluster.text("queue") == "12_[1-3%4]|CANCELLED|None\n12_0|CANCELLED|None\n1|RUNNING|None\n"
    )


def test_a_cancel_that_fails_says_what_to_type(cluster):
    cluster.put("squeue-down")
    with pytest.raises(TryAgainLater, match="scancel 12 13") as raised:
        cancel(["12_0", "13"])
    assert "Unable to contact slurm controller" in raised.value.what


def test_the_size_of_arrays_is_the_sites(cluster):
    cluster.put("array-size", "40\n")
    assert max_array_size() == 40
    cluster.put("array-size", "0\n")
    assert max_array_size() == 1, "a site may forbid arrays"
    cluster.program("scontrol", "echo 'slurm_load_ctl_conf error' >&2; exit 1")
    assert max_array_size() == 1001


def test_the_wait_before_a_kill_is_the_sites(cluster):
    cluster.program("scontrol", "echo 'KillWait                = 90 sec'")
    assert kill_wait_s() == 90.0
    cluster.program("scontrol", "echo 'KillOnBadExit           = 0'")
    assert kill_wait_s() == 30.0


def test_a_job_is_found_by_its_name(cluster):
    cluster.put("names", "mine-1 41\nmine-2 42\n")
    assert (find("mine-2", 0.0), find("mine-3", 0.0)) == ("42", "")
    cluster.put("squeue-down")
    assert find("mine-2", 0.0) is None


def test_only_the_accounts_may_know_a_job_that_has_ended(cluster):
    cluster.program("sacct", f"echo \"$*\" > '{cluster.folder}/sacct-asked'; echo 41_1")
    assert find("mine-1", 1_000_000_000.0) == "41"
    asked = cluster.text("sacct-asked")
    assert "--name=mine-1" in asked
    assert "-S 2001-09-0" in asked, "from before it was submitted"


def test_what_jobs_used_is_added_up_over_their_runs(cluster):
    cluster.put(
        "used",
        "1_0|COMPLETED|60\n1_1|PREEMPTED|10\n1_1|COMPLETED|20\n"
        "1_2|NODE_FAIL|30\n1_2|RUNNING|5\n2|CANCELLED by 20000|7\n",
    )
    assert used_s(["1_0", "1_1", "1_2", "2", "3"]) == {"1_0": 60.0, "1_1": 30.0, "2": 7.0}
    assert used_s([]) == {}
    cluster.put("sacct-down")
    assert used_s(["1_0"]) is None


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("30:05", 1805), ("2:00:01", 7201), ("1-01:00:00", 90000), ("UNLIMITED", None), ("", None)],
)
def test_the_walltime_left_is_read_as_squeue_writes_it(cluster, said, seconds):
    cluster.program("squeue", f"echo {said}")
    assert time_left_s("1") == seconds

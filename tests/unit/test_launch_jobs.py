"""What is started, as text: commands, sbatch scripts, records."""

import dataclasses

import pytest

from pike_hpc.cli.run import wait_for
from pike_hpc.launch import Job, LocalLauncher, dry_run, read_jobs
from pike_hpc.launch.jobs import JobRecord, append_jobs
from pike_hpc.machine import is_that, start_token


def test_environment_travels_in_the_command_so_that_no_key_is_pickled():
    job = Job(
        kind="worker",
        name="w",
        argv=("python", "-m", "pike_hpc", "worker", "/a run"),
        env={"PYTHONPATH": "/lib"},
        unset=("OPENAI_API_KEY",),
    )
    assert job.command[:4] == ("env", "-u", "OPENAI_API_KEY", "PYTHONPATH=/lib")
    assert dry_run("/run", [job], None).endswith("pike_hpc worker '/a run'")


def test_records_survive_a_torn_last_line(tmp_path):
    record = JobRecord(
        job_id="7",
        kind="agent",
        name="a",
        launcher="slurm",
        host="h",
        submitted_at=1.0,
        argv=("x",),
    )
    append_jobs(tmp_path, (record, record))
    with (tmp_path / "slurm" / "jobs.jsonl").open("a") as file:
        file.write('{"job_id": "8", "ki')
    assert read_jobs(tmp_path) == (record, record)
    assert read_jobs(tmp_path / "nothing") == ()
    append_jobs(tmp_path, (record,))
    append_jobs(tmp_path, (record,))
    assert read_jobs(tmp_path) == (record,) * 4, "what comes after it is whole"


@pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning")
def test_a_local_job_is_recorded_by_its_start_and_older_records_are_read(tmp_path):
    (record,) = LocalLauncher(tmp_path).submit([Job(kind="agent", name="a", argv=("true",))])
    pid = int(record.job_id)
    assert record.process == start_token(pid)
    assert wait_for(lambda: not is_that(pid, record.process), 60)
    path = tmp_path / "slurm" / "jobs.jsonl"
    path.write_text(path.read_text().replace(f',"process":"{record.process}"', ""))
    assert read_jobs(tmp_path) == (dataclasses.replace(record, process=""),)


@pytest.mark.parametrize(("count", "array"), [(1, None), (3, "#SBATCH --array=0-2%3")])
def test_the_dry_run_is_the_script_that_submitit_would_submit(tmp_path, count, array):
    jobs = [Job(kind="agent", name=f"a{n}", argv=("pike-hpc", "agent", "R")) for n in range(count)]
    text = dry_run(tmp_path, jobs, {"job_name": "pike-agent", "time": 30, "qos": "shared"})
    lines = text.splitlines()
    assert "#SBATCH --qos=shared" in lines
    assert "#SBATCH --time=30" in lines
    assert (array in lines) == bool(array)
    assert any(line.endswith("pike-hpc agent R") for line in lines)

"""Mistakes that a real Slurm finds before anything is submitted, and keys that stay outside."""

import pytest
from builders.devcluster import await_that

WORKFLOW = """
schema_version: 1
name: rig
tasks: {suite: level3-pike, ids: "4"}
search: {strategy: rules}
workers: {count: 2}
"""


@pytest.fixture
def submit(slurm):
    """`submit(*options)`: the program at its end, started by the rig's user."""
    workflow = slurm.write("w.yaml", WORKFLOW)
    pike = (slurm.python, "-m", "pike_hpc", "submit", "--workflow", workflow, "--run", "run")
    no_engine = ("--site", "devcluster", "--set", "container.engine=none")

    def ask(*options, **env):
        return slurm.tried(*pike, *no_engine, *options, **env)

    return ask


@pytest.mark.parametrize(
    ("options", "sentence", "place", "command"),
    [
        (
            ("--account", "m9999"),
            "worker and agent jobs: Invalid account or account/partition combination specified",
            "account = m9999 (--account)",
            "sacctmgr -nP show assoc",
        ),
        (
            ("--set", "worker_job.qos=premium"),
            "worker job: Invalid qos specification",
            "worker_job.qos = premium (--set",
            "sacctmgr -nP show assoc",
        ),
        (
            ("--set", "agent.partition=lr7"),
            "agent job: invalid partition specified: lr7; Invalid partition name specified",
            "agent.partition = lr7 (--set",
            "sinfo -o '%P %l %D'",
        ),
        (
            ("--set", "worker_job.constraint=hbm80g"),
            "worker job: Invalid feature specification",
            "worker_job.constraint = hbm80g (--set",
            "sinfo -o '%P %f'",
        ),
        (
            ("--set", "worker_job.gres=gpu:h100:1"),
            "worker job: Requested node configuration is not available",
            "worker_job.gres = gpu:h100:1 (--set",
            "sinfo -o",
        ),
        (
            ("--set", "worker_job.cpus=64"),
            "worker job: Requested node configuration is not available",
            "worker_job.cpus = 64 (--set",
            "sinfo -o",
        ),
        (
            ("--set", "agent.qos=debug"),
            "agent job: QOSMaxWallDurationPerJobLimit; Job violates accounting/QOS policy",
            "agent.walltime_minutes = 60 (",
            "sacctmgr -nP show qos",
        ),
        (
            ("--set", "worker_job.qos=brief"),
            "worker job: the time limit of QOS brief is 00:30:00; it would wait for ever",
            "worker_job.walltime_minutes = 60 (",
            "sacctmgr -nP show qos",
        ),
        (
            ("--set", "agent.walltime_minutes=2000"),
            "agent job: the time limit of partition cpu is 1-00:00:00; it would wait for ever",
            "agent.walltime_minutes = 2000 (--set",
            "sinfo -o '%P %l'",
        ),
    ],
)
def test_a_mistake_is_one_message_and_nothing_is_submitted(
    slurm, submit, options, sentence, place, command
):
    done = submit(*options)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("ceiling: 2 node-hours for 2 workers, ")
    assert f"Slurm would not run the {sentence}" in done.stderr
    assert place in done.stderr
    assert command in done.stderr
    assert not (slurm.folder / "run").exists()
    assert slurm.run("squeue", "-h") == ""


def test_a_controller_that_is_down_is_for_later(slurm, submit):
    """One that listens nowhere, by settings that are the user's alone."""
    settings = slurm.run("cat", "/etc/slurm/slurm.conf").replace("Port=16817", "Port=16899")
    settings += "\nMessageTimeout=1\nSlurmctldTimeout=1\n"  # how long it is looked for
    done = submit(SLURM_CONF=slurm.write("slurm.conf", settings))
    assert done.returncode == 75
    assert "Unable to contact slurm controller" in done.stderr
    assert not (slurm.folder / "run").exists()


def test_the_dry_run_shows_account_and_start(slurm, submit):
    done = submit("--dry-run")
    assert done.returncode == 0
    assert "# account: m0000 (Slurm's default for you)\n" in done.stdout
    assert "# expected start, by Slurm's estimate: workers 20" in done.stdout
    assert slurm.run("squeue", "-h") == ""


def test_a_secret_of_the_submitter_reaches_no_worker_job(slurm, submit):
    """Nor its batch script, whose setup lines see what the job sees."""
    seen = slurm.folder / "seen"
    setup = f"env > {seen}-$SLURM_JOB_NAME"
    secrets = {"OPENAI_API_KEY": "sk-rig", "HF_TOKEN": "sk-rig", "SBATCH_EXPORT": "ALL"}
    done = submit("--set", f'setup=["{setup}"]', LANG="C.UTF-8", **secrets)
    assert done.returncode == 0, done.stderr
    for name in ("worker", "agent"):
        seen_by = await_seen(slurm, name)
        await_that(lambda file=seen_by: "SLURM_JOB_ID" in file.read_text(), True)
        said = seen_by.read_text()
        assert "sk-rig" not in said
        assert "LANG=C.UTF-8\n" in said
        assert f"HOME={slurm.home}\n" in said


def await_seen(slurm, kind):
    """The first file that a job of that kind wrote; its name ends like the job's."""
    await_that(lambda: bool(list(slurm.folder.glob(f"seen-pike-{kind}-*"))), True)
    return next(slurm.folder.glob(f"seen-pike-{kind}-*"))

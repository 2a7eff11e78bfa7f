"""What Slurm is asked before anything is submitted, and what its answers become.

The sentences are those of Slurm 22.05; tests/cluster/test_preflight.py hears them from a real one.
"""

from pathlib import Path

import pytest

from pike_hpc.cli import main
from pike_hpc.config import resolve
from pike_hpc.config.env import sites_dir
from pike_hpc.launch import preflight
from pike_hpc.launch.refusal import ACCOUNTS

WORKFLOW = """
schema_version: 1
name: quick
tasks: {suite: level3-pike, ids: "4"}
search: {strategy: rules}
workers: {count: 2}
"""

SBATCH = """#!/bin/sh
here=$(dirname "$0")
for file; do :; done
kind=$(sed -n 's/^#SBATCH --job-name=pike-//p' "$file")
cp "$file" "$here/$kind.sh"
env > "$here/$kind.env"
echo "$*" >> "$here/calls"
[ -e "$here/$kind.refusal" ] && cat "$here/$kind.refusal" >&2 && exit 1
echo "sbatch: Job 7 to start at 2026-11-22T02:0${#kind}:00 using 2 processors" \
    "on nodes c1 in partition p" >&2
"""
STARTS = "workers 2026-11-22T02:06:00, agents 2026-11-22T02:05:00"

SACCTMGR = """#!/bin/sh
cd "$(dirname "$0")"
case "$*" in *flags*) cat flags;; *) cat default-account;; esac
"""

SINFO = """#!/bin/sh
cat "$(dirname "$0")/limit"
"""

SCONTROL = """#!/bin/sh
case "$*" in *partition*) echo "PartitionName=p QoS=$(cat "$(dirname "$0")/qos") x=1"; exit;; esac
echo "AccountingStorageBackupHost = (null)"
echo "AccountingStorageEnforce = $(cat "$(dirname "$0")/enforce")"
"""


ACCOUNT = "Invalid account or account/partition combination specified"
PARTITION = "Invalid partition name specified"
TIME = "Requested time limit is invalid (missing or exceeds some limit)"
POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A folder on PATH with an sbatch that takes everything but what a KIND.refusal says."""
    folder = tmp_path / "bin"
    folder.mkdir()
    scripts = {"sbatch": SBATCH, "sacctmgr": SACCTMGR, "sinfo": SINFO, "scontrol": SCONTROL}
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "enforce").write_text("none\n")
    (folder / "default-account").write_text("m0000\n")
    (folder / "flags").write_text("\n")
    (folder / "qos").write_text("N/A\n")
    (folder / "limit").write_text("infinite\n")
    (tmp_path / "w.yaml").write_text(WORKFLOW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def submit(capsys, *options):
    words = ("--workflow", "w.yaml", "--site", "devcluster", "--run", "run", *options)
    code = main(["submit", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def refuse(cluster, said, kinds=("worker", "agent")):
    for kind in kinds:
        (cluster / f"{kind}.refusal").write_text(f"{said}\n")


MEANINGS = f"""
{ACCOUNT} | worker | account = m0000 (Slurm's default for you) | sacctmgr -nP show assoc
Invalid qos specification | worker | worker_job.qos = preempt ( | sacctmgr -nP show assoc
Invalid qos specification | agent | agent.qos = regular ( | sacctmgr -nP show assoc
invalid partition specified: cpu; {PARTITION} | agent | agent.partition = cpu ( | sinfo -o
Invalid feature specification | worker | worker_job.constraint = gpu&hbm40g ( | sinfo -o '%P %f'
Invalid generic resource (gres) specification | worker | worker_job.gpus = 1 ( | sinfo -o '%P %G'
{TIME} | agent | agent.walltime_minutes = 60 ( | sinfo -o '%P %l'
{POLICY} | worker | worker_job.walltime_minutes = 60 ( | sacctmgr -nP show qos
Requested node configuration is not available | worker | worker_job.cpus = 2 ( | %c %m %G %f
More processors requested than permitted | agent | agent.cpus = 1 ( | sinfo
Something that no version has said yet | agent | agent.walltime_minutes = 60 ( | sinfo
"""


@pytest.mark.parametrize("row", MEANINGS.strip().splitlines())
def test_a_refusal_names_the_key_and_what_lists_its_values(capsys, cluster, row):
    said, kind, key, command = row.split(" | ")
    refuse(cluster, f"allocation failure: {said}", [kind])
    code, out, err = submit(capsys)
    assert (code, out) == (2, "")
    assert f"Slurm would not run the {kind} job: {said}\n" in err
    assert key in err
    assert command in err
    assert not Path("run").exists()


def test_both_jobs_are_tried_and_all_that_is_wrong_is_one_message(capsys, cluster):
    refuse(cluster, "allocation failure: Invalid qos specification", ["worker"])
    refuse(cluster, "allocation failure: Invalid partition name specified", ["agent"])
    code, _, err = submit(capsys)
    assert code == 2
    assert err.count("Slurm would not run") == 1
    assert "the worker job: Invalid qos specification; the agent job: Invalid partition" in err
    assert "worker_job.qos = preempt" in err
    assert "agent.partition = cpu" in err


@pytest.mark.parametrize(
    ("limit", "allowed"), [("59:00", False), ("1:00:00", True), ("1-00:00:00", True)]
)
def test_a_job_that_is_longer_than_its_partition_allows_would_wait_for_ever(
    capsys, cluster, limit, allowed
):
    """Slurm takes it, unless the site sets EnforcePartLimits."""
    (cluster / "limit").write_text(f"{limit}\n")
    _, out, _ = submit(capsys, "--dry-run")
    assert ("submit would stop here" in out) is not allowed
    assert ("worker_job.walltime_minutes = 60 (" in out) is not allowed
    assert ("agent.walltime_minutes = 60 (" in out) is not allowed
    (cluster / "flags").write_text("DenyOnLimit,PartitionTimeLimit|\n")
    _, out, _ = submit(capsys, "--dry-run")
    assert "submit would stop here" not in out


@pytest.mark.parametrize(
    ("limit", "enforced", "of_partition", "allowed"),
    [
        ("00:59:00", "associations,limits,qos", "N/A", False),
        ("00:59:00", "associations,safe", "N/A", False),
        ("1-00:00:00", "associations,limits,qos", "N/A", True),
        ("00:59:00", "associations,qos", "N/A", True),
        ("00:59:00", "associations,limits,qos", "part_p", True),
    ],
)
def test_a_job_that_is_longer_than_its_qos_allows_would_wait_for_ever(
    capsys, cluster, limit, enforced, of_partition, allowed
):
    """Slurm takes it, unless the QOS has the flag DenyOnLimit; where limits bind, and are its."""
    (cluster / "flags").write_text(f"PartitionTimeLimit|{limit}\n")
    (cluster / "enforce").write_text(f"{enforced}\n")
    (cluster / "qos").write_text(f"{of_partition}\n")
    _, out, _ = submit(capsys, "--dry-run")
    assert ("submit would stop here" in out) is not allowed
    assert (f"the time limit of QOS regular is {limit}" in out) is not allowed
    assert ("worker_job.walltime_minutes = 60 (" in out) is not allowed


def test_an_account_given_on_the_command_line_is_blamed_by_that_name(capsys, cluster):
    refuse(cluster, f"allocation failure: {ACCOUNT}")
    code, _, err = submit(capsys, "--account", "m9999")
    assert code == 2
    assert "Slurm would not run the worker and agent jobs: Invalid account" in err
    assert "account = m9999 (--account)" in err


def test_an_option_of_extra_is_blamed_by_its_name(capsys, cluster):
    refuse(cluster, "sbatch: error: Invalid --mem-per-cpu specification", ["worker"])
    code, _, err = submit(capsys, "--set", "worker_job.extra={mem-per-cpu: much}")
    assert code == 2
    assert "worker_job.extra.mem-per-cpu = much (--set" in err


@pytest.mark.parametrize(
    "said",
    [
        "allocation failure: Unable to contact slurm controller (connect failure)",
        "sbatch: fatal: Could not establish a configuration source",
        "allocation failure: Required partition not available (inactive or drain)",
        f"sbatch: error: QOSMaxSubmitJobPerUserLimit\nallocation failure: {POLICY}",
    ],
)
def test_a_slurm_that_cannot_answer_is_no_mistake_of_the_users(capsys, cluster, said):
    refuse(cluster, said)
    code, _, err = submit(capsys)
    assert code == 75
    assert said.splitlines()[0].rpartition(": ")[2] in err
    assert len((cluster / "calls").read_text().splitlines()) == 1
    assert not Path("run").exists()


def test_a_run_that_lacks_no_job_asks_nothing(cluster, tmp_path):
    (cluster / "sbatch").unlink()
    places = {"environ": {"HOME": str(tmp_path)}, "sites_dir": sites_dir({})}
    resolved = resolve(Path("w.yaml"), "devcluster", **places, user_config_dir=tmp_path)
    assert preflight(resolved, tmp_path, ((), ())) == ()


def test_without_sbatch_submit_says_where_to_run_it(capsys, cluster, monkeypatch):
    (cluster / "sbatch").unlink()
    monkeypatch.setenv("PATH", str(cluster))
    code, _, err = submit(capsys)
    assert code == 75
    assert "login node" in err


def test_the_dry_run_shows_account_and_start_and_asks_for_the_very_options(capsys, cluster):
    code, out, _ = submit(capsys, "--dry-run")
    assert code == 0
    assert f"# expected start, by Slurm's estimate: {STARTS}\n" in out
    assert "# account: m0000 (Slurm's default for you)\n" in out
    assert all("--test-only" in call for call in (cluster / "calls").read_text().splitlines())
    asked = (cluster / "worker.sh").read_text()
    wanted = [line for line in out.splitlines() if line.startswith("#SBATCH")]
    options = [line for line in asked.splitlines() if line.startswith("#SBATCH")]
    assert options == wanted[: len(options)]
    assert "#SBATCH --qos=preempt" in options
    assert "#SBATCH --array=0-1%2" in options
    assert asked.rstrip().endswith(" true")
    _, out, _ = submit(capsys, "--dry-run", "--account", "m1234")
    assert "# account: m1234 (--account)\n" in out


def test_the_dry_run_shows_a_refusal_and_goes_on(capsys, cluster):
    refuse(cluster, "allocation failure: Invalid qos specification")
    code, out, _ = submit(capsys, "--dry-run")
    assert code == 0
    assert (
        "# submit would stop here:\n# Slurm would not run the worker and agent jobs: Invalid" in out
    )
    assert "#SBATCH --qos=preempt" in out


def test_the_dry_run_needs_no_slurm(capsys, cluster, monkeypatch):
    (cluster / "sbatch").unlink()
    monkeypatch.setenv("PATH", str(cluster))
    code, out, _ = submit(capsys, "--dry-run")
    assert code == 0
    assert "#SBATCH --qos=preempt" in out
    assert "account" not in out


@pytest.mark.parametrize("enforced", ["none", "nojobs,nosteps"])
def test_without_any_account_that_is_said_where_none_is_wanted(capsys, cluster, enforced):
    (cluster / "default-account").write_text("\n")
    (cluster / "enforce").write_text(f"{enforced}\n")
    code, out, _ = submit(capsys, "--dry-run")
    assert code == 0
    assert "# account: none, and Slurm asks for none; `sacctmgr" in out


@pytest.mark.parametrize(
    "enforced", ["associations", "associations,limits,qos,safe", "nosteps,qos", "wckeys", "ALL"]
)
def test_without_any_account_where_one_is_wanted_nothing_is_tried(capsys, cluster, enforced):
    (cluster / "default-account").write_text("\n")
    (cluster / "enforce").write_text(f"{enforced}\n")
    code, out, err = submit(capsys)
    assert (code, out) == (2, "")
    ceiling, what, *more = err.splitlines()
    assert ceiling.startswith("ceiling: ")
    assert "Slurm wants an account for every job and has no default for you" in what
    assert f"`{ACCOUNTS}`" in "\n".join(more)
    assert "--account A (make: ACCOUNT=A), or write account: A in your site file" in more[-1]
    assert not (cluster / "calls").exists()
    assert not Path("run").exists()
    assert submit(capsys, "--dry-run", "--account", "m1")[1].count("# account: m1 (--account)") == 1


SUFFIX = ("--set", "account_gpu_suffix=_g")


def test_the_suffix_is_added_to_slurms_default_as_to_one_that_is_given(capsys, cluster):
    code, out, _ = submit(capsys, "--dry-run", *SUFFIX)
    assert code == 0
    wanted = "# account: m0000_g for workers, m0000 for agents (Slurm's default for you)\n"
    assert wanted in out
    worker, agent = ((cluster / f"{kind}.sh").read_text() for kind in ("worker", "agent"))
    assert "#SBATCH --account=m0000_g\n" in worker
    assert "#SBATCH --account=m0000\n" in agent
    assert [line for line in out.splitlines() if line.startswith("#SBATCH --account")] == [
        "#SBATCH --account=m0000_g",
        "#SBATCH --account=m0000",
    ]


def test_an_account_that_is_refused_with_the_suffix_is_told_with_it(capsys, cluster):
    refuse(cluster, f"allocation failure: {ACCOUNT}", ["worker"])
    _, _, err = submit(capsys, *SUFFIX)
    assert "account = m0000 (Slurm's default for you); account_gpu_suffix = _g (--set" in err
    refuse(cluster, f"allocation failure: {ACCOUNT}", ["agent"])
    (cluster / "worker.refusal").unlink()
    assert "account_gpu_suffix" not in submit(capsys, *SUFFIX)[2]


def test_accounts_that_cannot_be_asked_stop_only_what_depends_on_the_default(capsys, cluster):
    """The controller knows the default even while the accounting daemon is down."""
    (cluster / "default-account").unlink()
    (cluster / "enforce").write_text("associations\n")
    code, out, _ = submit(capsys, "--dry-run")
    assert f"# expected start, by Slurm's estimate: {STARTS}\n" in out
    assert "# account: Slurm's default for you; which one that is cannot be asked now\n" in out
    code, _, err = submit(capsys, *SUFFIX)
    assert code == 75
    assert "Slurm does not tell your default now" in err
    assert not Path("run").exists()
    _, out, _ = submit(capsys, "--dry-run", *SUFFIX, "--account", "m1")
    assert "# account: m1_g for workers, m1 for agents (--account)\n" in out


def test_an_agent_that_scrontab_is_to_start_is_tried_and_refused_without_stopping(capsys, cluster):
    """Its QOS may be one that a site gives to scrontab alone."""
    scrontab = ("--dry-run", "--set", "agent.where=scrontab", "--set", "agent.qos=workflwo")
    assert "of scrontab" not in submit(capsys, *scrontab)[1]
    assert "#SBATCH --qos=workflwo" in (cluster / "agent.sh").read_text()
    (cluster / "agent.refusal").write_text("sbatch: error: Invalid qos specification\n")
    code, out, _ = submit(capsys, *scrontab)
    assert code == 0
    assert "# by sbatch Slurm would not take the agent of scrontab:\n# Slurm would not run" in out
    assert "agent.qos = workflwo" in out
    assert "submit would stop here" not in out

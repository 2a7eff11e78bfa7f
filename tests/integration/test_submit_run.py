"""`pike-hpc submit` as a person meets it: to the end, again, interrupted, and killed at random.

Real processes throughout: submitit's local jobs, the file mailbox and, in the run that is left to
its end and the one that is cancelled, the sandbox and the judge.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pike_hpc.cli.processes import pids_of
from pike_hpc.cli.run import Run
from pike_hpc.journal import read_task
from pike_hpc.records import Evaluated, Requested

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]

TASK = """
import torch
import torch.nn as nn

batch_size = 4


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))


def get_inputs():
    return [torch.randn(batch_size, 3, 16, 16)]


def get_init_inputs():
    return [8]
"""

WORKFLOW = """
schema_version: 1
name: tiny
tasks: {path: TASKS, ids: "1"}
search: {strategy: rules}
budget: {evaluations_per_task: 1, wall_minutes: 20}
evaluate: {timeout_s: 120}
"""


REHEARSED = ("submit", "--workflow", "rehearsed.yaml", "--run")
"""Real jobs and made-up verdicts: for what happens around a judge, of which one is enough."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One task and two workflows."""
    folder = tmp_path_factory.mktemp("a place")
    tasks = folder / "tasks"
    tasks.mkdir()
    (tasks / "1_First.py").write_text(TASK)
    workflow = WORKFLOW.replace("TASKS", json.dumps(str(tasks)))
    (folder / "workflow.yaml").write_text(workflow)
    longer = workflow.replace("per_task: 1", "per_task: 4")
    rehearsed = longer.replace("timeout_s: 120", "devices: [simulated]")
    (folder / "rehearsed.yaml").write_text(rehearsed)
    return folder


@pytest.fixture(scope="module")
def place(folder):
    """That folder with an uninterrupted run, judged."""
    done = pike(folder, "submit", "--workflow", "workflow.yaml", "--run", "whole")
    assert done.returncode == 0, done.stderr
    return folder, done


@pytest.fixture(scope="module")
def uninterrupted(folder):
    """The canonical export of a rehearsed run that nothing happened to."""
    done = pike(folder, *REHEARSED, "left alone")
    assert done.returncode == 0, done.stderr
    return canonical(folder, "left alone")


def command(*arguments):
    return [sys.executable, "-P", "-m", "pike_hpc", *map(str, arguments)]


def pike(folder, *arguments, timeout=300):
    return subprocess.run(
        command(*arguments),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def canonical(folder, run):
    done = pike(folder, "archive", "export", "--canonical", run)
    assert done.returncode == 0, done.stderr
    return done.stdout


def status(folder, run):
    return json.loads(pike(folder, "status", run, "--json").stdout)


def wait_until(condition, seconds=300):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError("it did not come true in time")


def processes_of(run):
    """Every process whose command line names the run folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if str(run).encode() in words and b"pike_hpc" in words:
                found.append((int(entry.name), b" ".join(words).decode()))
    return found


def is_under_way(run):
    """Whether work is asked for, and every worker and agent can be found by who would stop it.

    One that takes longer than 20 s to show itself would be killed unasked.
    """
    if not ((run / "journal").is_dir() and journalled(run, Requested)):
        return False
    jobs = {pid for pid, line in processes_of(run) if " worker " in line or " agent " in line}
    return len(jobs) > 1 and jobs <= set(pids_of(Run.open(run)))


def journalled(run, kind):
    return [s.event for s in read_task(run, "tasks_1") if isinstance(s.event, kind)]


def test_it_ends_with_a_table_and_the_paths(place):
    folder, done = place
    assert "device: cpu" in done.stderr.splitlines()[0]
    (line,) = [said for said in done.stderr.splitlines() if "tasks/1 First: identity" in said]
    assert "judged" in line
    assert "best" in line
    assert "left" in line
    assert "First" in done.stdout
    assert str(folder / "whole" / "archive.h5") in done.stdout
    page = (folder / "whole" / "report.html").read_text()
    assert "default-src 'none'" in page
    report = json.loads(pike(folder, "report", "whole", "--json").stdout)
    assert {t["task"] for t in report["tasks"]} == {"tasks/1"}
    assert all(t["best"]["fp32"]["speedup"] > 0 for t in report["tasks"])
    assert status(folder, "whole")["state"] == "done"
    assert pike(folder, "archive", "verify", "whole").returncode == 0


def test_a_second_submit_starts_nothing_and_says_so(place):
    folder, _ = place
    before = len((folder / "whole" / "slurm" / "jobs.jsonl").read_text().splitlines())
    again = pike(folder, "submit", "--workflow", "workflow.yaml", "--run", "whole")
    assert again.returncode == 0
    assert "nothing is started" in again.stderr
    after = len((folder / "whole" / "slurm" / "jobs.jsonl").read_text().splitlines())
    assert after == before


def test_nothing_is_left_running_after_a_run(place):
    folder, _ = place
    assert wait_until(lambda: processes_of(folder / "whole") == [], 20)


def test_a_changed_workflow_on_an_old_run_is_refused_with_the_difference(place):
    folder, _ = place
    changed = pike(
        folder,
        *("submit", "--workflow", "workflow.yaml", "--run", "whole"),
        *("--set", "budget.evaluations_per_task=3"),
    )
    assert changed.returncode == 2
    assert "budget.evaluations_per_task: 1 -> 3" in changed.stderr
    assert "Traceback" not in changed.stderr


@pytest.mark.parametrize("victim", ["agent", "all"])
def test_killed_and_started_again_it_ends_the_same(folder, uninterrupted, victim):
    run = folder / f"killed {victim}"
    arguments = (*REHEARSED, run)
    first = subprocess.Popen(
        command(*arguments), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_until(lambda: (run / "journal").is_dir() and journalled(run, Evaluated))
    known = {e.result.request_id for e in journalled(run, Evaluated)}
    for pid, line in processes_of(run):
        if victim == "all" or f" {victim} " in line:
            os.kill(pid, signal.SIGKILL)
    if victim == "all":
        first.wait(30)
        assert status(folder, run)["state"] == "paused"
    else:
        first.wait(300)
    again = pike(folder, *arguments)
    assert again.returncode == 0, again.stderr
    results = [e.result.request_id for e in journalled(run, Evaluated)]
    assert len(results) == len(set(results)), "a verdict was journalled twice"
    assert known <= set(results)
    assert {e.request_id for e in journalled(run, Requested)} == set(results)
    assert canonical(folder, run) == uninterrupted


def test_ctrl_c_pauses_in_order_and_the_same_command_continues(folder, uninterrupted):
    # Under nohup, or in the background, it would be inherited as ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run = folder / "interrupted"
    first = subprocess.Popen(
        command(*REHEARSED, run),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: is_under_way(run))
    os.killpg(first.pid, signal.SIGINT)
    _, said = first.communicate(timeout=90)
    assert first.returncode == 130
    assert "continue with: pike-hpc resume" in said
    assert "Traceback" not in said
    assert wait_until(lambda: processes_of(run) == [], 30)
    resumed = pike(folder, "resume", run)
    assert resumed.returncode == 0, resumed.stderr
    assert canonical(folder, run) == uninterrupted


def test_cancel_stops_the_jobs_and_keeps_the_data(place):
    folder, _ = place
    run = folder / "cancelled"
    first = subprocess.Popen(
        command("submit", "--workflow", "workflow.yaml", "--run", run),
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: is_under_way(run))
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert status(folder, run)["state"] == "running", "jobs outlive their follower"
    stopped = pike(folder, "cancel", run)
    assert stopped.returncode == 0
    assert wait_until(lambda: processes_of(run) == [], 30)
    assert status(folder, run)["state"] == "paused"
    assert (run / "journal").is_dir()


def test_cancel_ends_a_living_follower_too(place):
    folder, _ = place
    run = folder / "called-off"
    follower = subprocess.Popen(
        command("submit", "--workflow", "workflow.yaml", "--run", run),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: is_under_way(run))
    assert pike(folder, "cancel", run).returncode == 0
    _, said = follower.communicate(timeout=90)
    assert follower.returncode == 130
    assert f"this run was cancelled; continue with: pike-hpc resume {run}" in said
    assert "starting another" not in said
    assert processes_of(run) == []

"""A run on the rig whose verdicts are made up (device `simulated`), and what may happen to it.

Each verdict costs about a second; everything else about the run is real. What it should end like
is the same workflow walked through in one process, without Slurm. A run lasts seconds: what a test
must not miss is looked up in the run's files, where a command of ours would take seconds, too.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from builders.devcluster import REPO, Slurm, await_that

from pike_hpc.journal import read_task, task_slugs
from pike_hpc.mailbox import WorkerBeat, alive_here
from pike_hpc.records import CodecError, Evaluated, from_json

WORKFLOW = """
schema_version: 1
name: survival
tasks: {suite: level0, ids: "1-2"}
search: {strategy: rules}
evaluate: {devices: [simulated]}
workers: {count: 2, max_idle_s: 60}
"""
SUBMIT = ("submit", "--workflow", "workflow.yaml", "--site", "devcluster", "--run")


class Rehearsal:
    """The run `run` in a folder of the rig's user."""

    def __init__(self, slurm: Slurm, workflow: str = WORKFLOW) -> None:
        self.slurm = slurm
        slurm.write("workflow.yaml", workflow)

    def pike(self, *arguments: str, **env: str) -> str:
        """What a command of the package's printed; it must end well."""
        python = self.slurm.python
        return self.slurm.run(python, "-m", "pike_hpc", *arguments, timeout_s=120, **env)

    def submit(self, *settings: str) -> str:
        """Start the run with those settings (`key=value`)."""
        options = (word for text in settings for word in ("--set", text))
        return self.pike(*SUBMIT, "run", *options)

    def status(self, **env: str) -> Mapping[str, Any]:
        """What `status --json` says."""
        found: Mapping[str, Any] = json.loads(self.pike("status", "run", "--json", **env))
        return found

    def workers(self) -> dict[str, str]:
        """State of each worker job by its id."""
        return self._states("worker")

    def agents(self) -> dict[str, str]:
        """State of each agent job by its id."""
        return self._states("agent")

    def _states(self, kind: str) -> dict[str, str]:
        return {j["job_id"]: j["state"] for j in self.status()["jobs"] if j["kind"] == kind}

    def judged(self) -> int:
        """Verdicts journalled so far, those of timing again included."""
        return sum(self.judged_by_task())

    def judged_by_task(self) -> list[int]:
        """The same of each task that has begun."""
        run = self.slurm.folder / "run"
        tasks = [read_task(run, slug) for slug in task_slugs(run)]
        return [sum(isinstance(each.event, Evaluated) for each in task) for task in tasks]

    def judged_more(self, *, than: int, within_s: float = 120) -> None:
        """Wait for that."""
        await_that(lambda: self.judged() > than, True, within_s)

    def beats(self) -> dict[str, WorkerBeat]:
        """What living workers say, by job."""
        beats = {}
        for file in (self.slurm.folder / "run/mailbox/workers").glob("*.json"):
            with suppress(OSError, CodecError):
                beat = from_json(WorkerBeat, file.read_bytes())
                if alive_here(beat):
                    beats[(beat.job or "").partition(".")[0]] = beat
        return beats

    def pid(self, job: str) -> int:
        """A worker's process, once it has shown itself: every node is this machine."""
        await_that(lambda: job in self.beats(), True)
        return self.beats()[job].pid

    def amid_an_evaluation(self, job: str) -> int:
        """Wait until a worker judges. Its process."""
        pid = self.pid(job)
        await_that(lambda: self._judges(pid), True)
        return pid

    @contextmanager
    def frozen(self, job: str) -> Iterator[WorkerBeat]:
        """A worker that stands still, amid an evaluation. What it said last."""
        while True:
            pid = self.amid_an_evaluation(job)
            os.kill(pid, signal.SIGSTOP)
            try:
                if self._judges(pid):
                    yield self.beats()[job]
                    return
            finally:
                os.kill(pid, signal.SIGCONT)

    @contextmanager
    def deaf(self, job: str) -> Iterator[None]:
        """A worker that hears nothing, amid an evaluation, until it is killed."""
        while True:
            pid = self.amid_an_evaluation(job)
            argv = [sys.executable, str(REPO / "tests/builders/freezer.py"), str(pid)]
            with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as freezer:
                assert freezer.stdout is not None
                assert freezer.stdout.readline() == "held\n"
                if self._judges(pid):
                    yield
                    freezer.wait(60)
                    return
                freezer.kill()  # the evaluation had ended meanwhile: it goes on to the next

    def _judges(self, pid: int) -> bool:
        names = [path.name for path in (self.slurm.folder / "run/mailbox/cur").iterdir()]
        return any(f"-{pid}-" in name and name.endswith(".j") for name in names)

    def processes(self, kind: str) -> list[int]:
        """The living `workers` or `agents`: every node is this machine."""
        found = self.status()[kind]
        pids = {w["pid"] if kind == "agents" else int(w["id"].split("-")[-2]) for w in found}
        return sorted(pid for pid in pids if self._is_mine(pid, kind))

    def _is_mine(self, pid: int, kind: str) -> bool:
        try:
            said = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return kind.removesuffix("s").encode() in said and bytes(self.slurm.folder) in b" ".join(
            said
        )

    def log(self) -> str:
        """What all workers logged."""
        return "".join(
            log.read_text("utf-8") for log in (self.slurm.folder / "run/logs").glob("worker-*.log")
        )

    def export(self, run: str) -> str:
        """The canonical export of a run's archive."""
        return self.pike("archive", "export", "--canonical", f"{run}/archive.h5")

    def ends_like(self, undisturbed: str, within_s: float = 240) -> None:
        """Wait for the end, then compare the export with that of an undisturbed run."""
        await_that(lambda: self.status()["state"], "done", within_s)
        assert self.export("run") == undisturbed

"""Whole runs on a real Slurm that are disturbed all the time, and how they end.

    python tests/bench/cluster_soak.py [--minutes N] [--seed N] [--suite NAME] [--out DIR]
    python tests/bench/cluster_soak.py --judged [--minutes N] [--seed N] [--out DIR]

On the rig of `make devcluster`, as root: runs of a suite whose verdicts are made up (device
`simulated`, a second each), one after the other; with `--judged` two tasks of the quickstart,
really judged, in the image that the rig's user has to have. Chance, by the seed, preempts worker
jobs, sets nodes down, kills workers and agents with SIGKILL, freezes workers, and takes the
controller away for a while. Walltimes are a minute and a half, so that workers drain. What an
agent that was killed leaves is gone on with by `resume`, as a person would. After the time is over
the last run is left alone until it is done. Exit status 1 where the canonical export of any is not
that of an undisturbed run: of the same walked through in one process, or of a quickstart that was
left alone.
"""

import argparse
import dataclasses
import difflib
import os
import random
import re
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import stamp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from builders.devcluster import REPO, USER, Slurm, own_folder, public_python, why_not
from builders.rehearsal import SUBMIT, Rehearsal

from pike_hpc.tasks import load_suite

MODULES = (
    "cli/processes.py",
    "cli/sitting.py",
    "cli/slurm_jobs.py",
    "cli/walltime.py",
    "cli/wave.py",
    "cli/worker.py",
    "launch/plan.py",
    "launch/relay.py",
    "launch/wave.py",
    "slurm/commands.py",
    "slurm/job_state.py",
)
JUDGED_MODULES = (
    "agent/controller.py",
    "cli/lanes.py",
    "cli/walltime.py",
    "cli/wave.py",
    "cli/worker.py",
    "evaluate/judge.py",
    "evaluate/judge_bench.py",
    "evaluate/judge_guard.py",
    "evaluate/judge_process.py",
    "evaluate/judge_timing.py",
    "evaluate/judge_verdict.py",
    "evaluate/lane.py",
    "evaluate/warden/keeper.py",
    "evaluate/warden/processes.py",
    "launch/launcher.py",
    "launch/relay.py",
    "mailbox/file_mailbox.py",
    "worker/loop.py",
)
FIGURES = {
    "": (
        "seed minutes hits walltimes_drained requests_put_back agents_resumed_by_hand verdicts "
        "runs runs_that_ended_like_an_undisturbed_one"
    ),
}
WORKFLOW = """
schema_version: 1
name: soak
tasks: {suite: SUITE, ids: all}
search: {strategy: rules}
evaluate: {devices: [simulated]}
workers: {count: 3, max_idle_s: 5, max_node_hours: 100}
"""
BRIEF = """case $SLURM_JOB_NAME in pike-worker*) \
export SLURM_JOB_END_TIME=$(($(date +%s) + 90)); esac"""
"""As Slurm 23.02 and later tell it: of an evaluation that is the first it is taken that it lasts a
minute."""
AGENTS = 2
WORKERS_NODES = ("c1", "c2")
AGENTS_NODES = ("c3", "c4")
PUT_BACK = re.compile(r"(\d+) requests of lost workers are in the queue again")
FROZEN_S = (5.0, 40.0)
DOWN_S = (3.0, 20.0)
NO_NODES = "Requested node configuration is not available"
END_S = 450.0
"""Patience with a run that nothing disturbs any more."""
LEAST_HITS, HITS_S = 2, 300.0
"""Half a minute may be over before anything is there to be hit: how often something must have
been, and how much longer one tries."""


@dataclasses.dataclass(frozen=True)
class Scenario:
    """What is run, and how often it is disturbed."""

    workflow: str
    settings: tuple[str, ...]
    pause_s: tuple[float, float]
    """Between two disturbances."""
    is_judged: bool


def rehearsed(suite):
    """Made-up verdicts, by two agents."""
    tasks = len(load_suite(suite).tasks)
    return Scenario(
        workflow=WORKFLOW.replace("SUITE", suite),
        settings=(
            "worker_job.walltime_minutes=2",
            f'setup=["{BRIEF}"]',
            f"agent.tasks_per_job={-(-tasks // AGENTS)}",
        ),
        pause_s=(1.0, 6.0),
        is_judged=False,
    )


def quickstart():
    """Two of its tasks, really judged, some 15 s each: disturbed more often, nothing gets done."""
    return Scenario(
        workflow=(REPO / "workflows/quickstart.yaml").read_text("utf-8"),
        settings=(
            "worker_job.walltime_minutes=10",
            'tasks.ids="4,17"',
            "budget.evaluations_per_task=2",
            "agent.tasks_per_job=1",
            "workers.count=2",
            "workers.max_idle_s=30",
            "workers.max_node_hours=100",
            "budget.wall_minutes=0",
        ),
        pause_s=(10.0, 25.0),
        is_judged=True,
    )


class Disturber:
    """Does to a run what a cluster does, and counts what hit something."""

    def __init__(self, rehearsal, rng):
        self._rehearsal, self._slurm, self._rng = rehearsal, rehearsal.slurm, rng
        self._deck = []
        self.hits = Counter()
        self.ways = {
            "preempted": self.preempt,
            "node_down": lambda: self.set_down(WORKERS_NODES),
            "agents_node_down": lambda: self.set_down(AGENTS_NODES),
            "worker_killed": lambda: self.kill("workers"),
            "agent_killed": lambda: self.kill("agents"),
            "worker_frozen": self.freeze,
            "controller_stopped": self.stop_controller,
        }

    def disturb(self):
        """One of the ways, by chance; each comes once before any comes twice."""
        self._deck = self._deck or self._rng.sample(sorted(self.ways), len(self.ways))
        way = self._deck.pop()
        if self.ways[way]():
            self.hits[way] += 1
        return way

    def preempt(self):
        """A job of a better QOS takes a node for a moment."""
        node = self._rng.choice(WORKERS_NODES)
        there = self._slurm.run("squeue", "-h", "-t", "R", "-o", "%q", f"--nodelist={node}")
        self._slurm.submit("sleep 1", "-p", "gpu", f"--nodelist={node}", "--exclusive")
        return "preempt" in there.split()

    def set_down(self, nodes):
        """As when one of them answers no more, while what ran there runs on."""
        node = self._rng.choice(nodes)
        there = self._slurm.run("squeue", "-h", "-t", "R", f"--nodelist={node}")
        with self._slurm.down(node):
            time.sleep(self._rng.uniform(*DOWN_S))
        return bool(there)

    def kill(self, kind):
        """SIGKILL to one process of that kind."""
        pid = self._some(kind)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        return pid is not None

    def freeze(self):
        """A worker stands still for so long that others may take it for dead."""
        pid = self._some("workers")
        if pid is None:
            return False
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(self._rng.uniform(*FROZEN_S), _go_on, (pid, _began(pid))).start()
        return True

    def stop_controller(self):
        """slurmctld is gone for a while."""
        with self._slurm.outage("slurmctld"):
            time.sleep(self._rng.uniform(*DOWN_S))
        return True

    def _some(self, kind):
        """A living process of the run, the rig's user's; None where there is none."""
        found = self._rehearsal.processes(kind)
        return self._rng.choice(found) if found else None


def _began(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def _go_on(pid, began):
    """Wake it, unless it is gone and another has its number."""
    try:
        if _began(pid) == began:
            os.kill(pid, signal.SIGCONT)
    except OSError:
        return


def undisturbed(rehearsal, scenario):
    """The canonical export of such a run that nothing happens to."""
    if scenario.is_judged:
        rehearsal.submit(*scenario.settings)
        leave_alone(rehearsal)
        return rehearsal.export("run")
    rehearsal.pike(*SUBMIT, "undisturbed", "--simulate")
    return rehearsal.export("undisturbed")


def soak(folder, scenario, minutes, rng):
    """Runs, one after the other. Returns the document's figures."""
    slurm = Slurm(folder, public_python())
    slurm.all_idle()
    rehearsal = Rehearsal(slurm, scenario.workflow)
    wanted = undisturbed(rehearsal, scenario)
    disturber = Disturber(rehearsal, rng)
    runs, resumed, drained, put_back, verdicts = [], 0, 0, 0, 0
    began = time.monotonic()
    end = began + 60 * minutes

    def goes_on():
        few = sum(disturber.hits.values()) < LEAST_HITS
        return time.monotonic() < end + (HITS_S if few else 0)

    while goes_on():
        slurm.run("rm", "-rf", "run")
        rehearsal.submit(*scenario.settings)
        while (found := rehearsal.status())["state"] != "done" and goes_on():
            resumed += go_on(rehearsal, found)
            said = disturber.disturb()
            sys.stderr.write(f"{time.monotonic() - began:5.0f} s: {judged(found)} judged, {said}\n")
            time.sleep(rng.uniform(*scenario.pause_s))
        resumed += leave_alone(rehearsal)
        verdicts += judged(rehearsal.status())
        log = rehearsal.log()
        drained += log.count("may not fit into the walltime left")
        put_back += sum(map(int, PUT_BACK.findall(log)))
        found = rehearsal.export("run")
        runs.append(found == wanted)
        sys.stderr.writelines(difflib.unified_diff(wanted.splitlines(True), found.splitlines(True)))
        sys.stderr.write(f"{time.monotonic() - began:5.0f} s: done, as undisturbed: {runs[-1]}\n")
    return {
        "minutes": minutes,
        "hits": dict(sorted(disturber.hits.items())),
        "walltimes_drained": drained,
        "requests_put_back": put_back,
        "agents_resumed_by_hand": resumed,
        "verdicts": verdicts,
        "runs": len(runs),
        "runs_that_ended_like_an_undisturbed_one": sum(runs),
    }


def judged(found):
    """Verdicts journalled, those of timing again included."""
    return sum(task["judged"] + task["retimed"] for task in found["tasks"])


def go_on(rehearsal, found):
    """As a person who looks in: where an agent is gone, resume. How many were started."""
    living = sum(job["kind"] == "agent" and job["alive"] is not False for job in found["jobs"])
    if living >= AGENTS:
        return 0
    slurm = rehearsal.slurm
    # It may have to be tried again, where Slurm has not heard of the end yet, or where a controller
    # just started has not heard of the nodes yet.
    done = slurm.tried(slurm.python, "-m", "pike_hpc", "resume", "run", timeout_s=120)
    if done.returncode not in (0, 75) and NO_NODES not in done.stderr:
        raise SystemExit(f"resume failed: {done.stderr}")
    return done.stdout.count("agent job")


def leave_alone(rehearsal):
    """Until the run is done; how many agents had to be resumed."""
    resumed, patience = 0, time.monotonic() + END_S
    while (found := rehearsal.status())["state"] != "done":
        if time.monotonic() > patience:
            said = (rehearsal.slurm.administer(*ask) for ask in (["squeue", "-a"], ["sinfo", "-R"]))
            ending = f"the run is {found['state']} after {END_S:.0f} s left alone"
            raise SystemExit("\n".join([ending, *found["notes"], *said]))
        resumed += go_on(rehearsal, found)
        rehearsal.slurm.free_kept_gpus()
        time.sleep(2)
    return resumed


def main():
    """Run it, or say why not."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--minutes", type=float, default=7.0, help="of disturbances (7)")
    words.add_argument("--seed", type=int, default=1)
    what = words.add_mutually_exclusive_group()
    what.add_argument("--suite", default="level3-pike", metavar="NAME", help="(level3-pike)")
    what.add_argument("--judged", action="store_true", help="the quickstart, really judged")
    words.add_argument("--out", type=Path, help="folder for the JSON; stdout without it")
    asked = words.parse_args()
    scenario = quickstart() if asked.judged else rehearsed(asked.suite)
    name = "cluster_soak_judged" if asked.judged else "cluster_soak"
    obstacle = why_not()
    if obstacle:
        sys.stderr.write(f"cluster_soak is not run: {obstacle}\n")
        return 0
    with own_folder() as folder:
        slurm = Slurm(folder, public_python())
        try:
            figures = soak(folder, scenario, asked.minutes, random.Random(asked.seed))
        finally:
            slurm.administer("scancel", f"--user={USER}")
            for node in (*WORKERS_NODES, *AGENTS_NODES):
                slurm.administer("sh", "-c", f"scontrol update nodename={node} state=resume || :")
    head = stamp.stamp(name, JUDGED_MODULES if asked.judged else MODULES)
    document = {**head, "seed": asked.seed, **figures}
    stamp.write(document, asked.out)
    stamp.check(document, FIGURES)
    return int(figures["runs"] != figures["runs_that_ended_like_an_undisturbed_one"])


if __name__ == "__main__":
    sys.exit(main())

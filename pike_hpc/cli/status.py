"""`pike-hpc status RUN`: jobs, workers, queue, budget, best per task; starts nothing.

Read from heartbeats, journals and the job record, so it is right with any daemon down; what
Slurm says of the jobs is added where it answers.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pike_hpc.agent import active_seconds
from pike_hpc.cli.file_age import FileAges
from pike_hpc.cli.last_words import never_began, words_of
from pike_hpc.cli.processes import agents_of
from pike_hpc.cli.room import no_room
from pike_hpc.cli.run import Run
from pike_hpc.cli.slurm_jobs import Known, look
from pike_hpc.cli.wave import read_why
from pike_hpc.config import env
from pike_hpc.journal.holder import Holder
from pike_hpc.launch import EVERY_MINUTES, read_jobs
from pike_hpc.mailbox import SeenWorker, alive_here
from pike_hpc.records import Tier, encode, without_escapes
from pike_hpc.search import TaskView, leader
from pike_hpc.slurm import JobState

_STALE_S = 120.0
"""A heartbeat older than this, from a machine that cannot be asked, is no sign of life any more."""

_TICK_STALE_S = 2 * EVERY_MINUTES * 60.0
"""The same of an agent that scrontab starts again and again."""

_NO_TICKS = (
    f"no agent of scrontab was here for {_TICK_STALE_S / 60:g} min: look at its lines with "
    "`scrontab -l`. Slurm comments them out when their job is cancelled, as before a maintenance"
)

_NOTE = 400
"""Characters of a message that are shown."""

_ASK_SLURM_S = 30.0
"""Between two questions to Slurm while watching: its controller serves the whole site."""


def add_status(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("run_dir", metavar="RUN", type=Path)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--watch", action="store_true", help="again every 2 s until it is done")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print once, or until the run is done."""
    opened = Run.open(options.run_dir)
    jobs, asked = look(opened), time.monotonic()
    while True:
        if time.monotonic() - asked > _ASK_SLURM_S:
            jobs, asked = look(opened), time.monotonic()
        found = document(opened, jobs)
        if options.json:
            print(json.dumps(found, indent=None if options.watch else 2), flush=True)
        else:
            live = options.watch and sys.stdout.isatty() and not env.no_color(env.environ())
            print(("\x1b[H\x1b[J" if live else "") + describe(found), flush=True)
        if not options.watch or found["state"] in ("done", "failed"):
            return 0
        time.sleep(2)


def document(run: Run, jobs: Known, ages: FileAges | None = None) -> dict[str, Any]:
    """What `status --json` prints, with what Slurm knows of the jobs."""
    ages = ages or FileAges(run.dir)
    views = run.views()
    states = {record.job_id: state for record, state in jobs}
    workers = [_worker(seen, states) for seen in run.mailbox.workers()]
    agents = agents_of(run)
    state = _state(run, views, _at_work(run, agents, jobs, ages))
    return {
        "schema_version": 1,
        "run": str(run.dir),
        "state": state,
        "jobs": _jobs(run, jobs),
        "notes": _notes(run, jobs, state, ages),
        "agents": [_agent(run, h, ages) for h in {h.writer: h for h in agents}.values()],
        "workers": workers,
        "queue": encode(run.mailbox.counts()),
        "budget": _budget(run, views),
        "tasks": [_task(key, view) for key, view in views.items()],
    }


def describe(found: dict[str, Any]) -> str:
    """The same for a person."""
    queue, budget = found["queue"], found["budget"]
    alive = [w for w in found["workers"] if w["state"] != "lost"]
    lines = [
        f"{found['run']}: {found['state']}",
        *_slurm_lines(found["jobs"]),
        *(f"           {note}" for note in found["notes"]),
        *_agent_lines(found["agents"]),
        f"  workers  {len(alive)} alive"
        + "".join(f"; {_short(w['host'])} {w['state']} {w['phase']}".rstrip() for w in alive),
        f"  queue    {queue['new']} new, {queue['claimed']} claimed, {queue['done']} done and not "
        f"yet journalled, {queue['dead']} dead",
        f"  spent    {budget['evaluations']} evaluations, {budget['retimes']} timings again, "
        f"{budget['queries']} queries, "
        f"${budget['usd']:.2f}, {budget['lane_s']:.0f} s of device time, "
        f"{budget['wall_s'] / 60:.1f} min at work"
        + (f" of {budget['wall_minutes']:g}" if budget["wall_minutes"] else ""),
    ]
    for task in found["tasks"]:
        best = ", ".join(
            f"{t} {b['speedup']:.2f}x{'' if b['retimed'] else '*'}"
            for t, b in task["best"].items()
            if b
        )
        now = "timing the best again" if task["search_ended"] else "searching"
        state = (task["finished"] or task["paused"] or now).splitlines()[0]
        lines.append(f"  {task['task']:<22} {task['judged']:>3} judged  {best or '-':<34} {state}")
    if any(b and not b["retimed"] for task in found["tasks"] for b in task["best"].values()):
        lines.append("  * the search's value, not yet timed again: the best of many is too good")
    return "\n".join(lines)


def _short(host: str) -> str:
    """Its name without the domain; a node's own may hold dashes."""
    return host.partition(".")[0]


def _jobs(run: Run, known: Known) -> list[dict[str, Any]]:
    """Every recorded job. Slurm's keys are null for a process of some machine's own."""
    states = {record.job_id: encode(state) for record, state in known}
    nothing = dict.fromkeys(("word", "reason", "alive"))
    documents = []
    for record in read_jobs(run.dir):
        said = states.get(record.job_id) if record.launcher == "slurm" else None
        said = said or nothing
        extra = {"state": said["word"], "reason": said["reason"], "alive": said["alive"]}
        documents.append({**encode(record), **extra})
    return documents


def _notes(run: Run, known: Known, state: str, ages: FileAges) -> list[str]:
    """What the latest job of each kind that failed said at its end, and why none replaces it."""
    notes = []
    for kind in ("agent", "worker"):
        failed = [r.job_id for r, s in known if r.kind == kind and s.word == "FAILED"]
        message = _why_failed(run, failed[-1]) if failed else None
        if message is not None:
            notes.append(f"{kind} job {failed[-1]} failed{message}")
    why = read_why(run)
    notes += [f"no worker is started: {why[:_NOTE]}"] if why else []
    notes += [_NO_TICKS] if state == "paused" and _by_ticks(run) else []
    full = no_room(run.dir, ages)
    return [*notes, full] if full else notes


def _why_failed(run: Run, job_id: str) -> str | None:
    """What follows `failed` in a note; None where the job has a log and no last words in it."""
    if never_began(run.dir, job_id):
        return (
            f" and left no log: its node may not see {run.dir}; "
            f"to find out: pike-hpc doctor --site {run.resolved.site.name}"
        )
    said = words_of(run.dir, job_id)
    if said is None:
        return None
    return ": " + " ".join(without_escapes(said.message).split())[:_NOTE]


def _slurm_lines(jobs: list[dict[str, Any]]) -> list[str]:
    """How many jobs of each kind are in which state, those that live first."""
    lines: list[str] = []
    for kind in ("agent", "worker"):
        mine = [job for job in jobs if job["kind"] == kind and job["state"]]
        mine.sort(key=lambda job: job["alive"] is False)
        words = Counter(
            job["state"] + (f" ({job['reason']})" if job["reason"] else "") for job in mine
        )
        if words:
            said = ", ".join(f"{count} {word}" for word, count in words.items())
            lines.append(f"  {'slurm' if not lines else '':<8} {kind} jobs: {said}")
    return lines


def _agent_lines(agents: list[dict[str, Any]]) -> list[str]:
    """Who drives the search; nothing where nobody does."""
    said = [
        f"{a['host']} process {a['pid']} {a['state']}"
        + (f" ({a['heartbeat_age_s']:.0f} s ago)" if a["heartbeat_age_s"] is not None else "")
        for a in agents
    ]
    return [f"  agents   {'; '.join(said)}"] if said else []


def _at_work(run: Run, agents: tuple[Holder, ...], jobs: Known, ages: FileAges) -> bool:
    """Whether somebody drives the search, or waits in Slurm's queue or for the next tick to do so.

    Of a controller on another machine only its sign of life tells: its log, touched every 20 s.
    """
    if any(state.alive for record, state in jobs if record.kind == "agent"):
        return True
    signs = (_is_here(a) or _is_fresh(ages.age_s(_sign(run, a))) for a in agents)
    return any(signs) or _ticks(run, ages)


def _agent(run: Run, holder: Holder, ages: FileAges) -> dict[str, Any]:
    """Who drives tasks. Without a fresh sign of life one on another machine is shown as lost."""
    age_s = ages.age_s(_sign(run, holder))
    return {
        "writer": holder.writer,
        "host": holder.host,
        "pid": holder.pid,
        "state": "alive" if _is_here(holder) or _is_fresh(age_s) else "lost",
        "heartbeat_age_s": None if age_s is None else round(age_s, 3),
    }


def _is_here(holder: Holder) -> bool:
    """Whether its process could be looked at from this machine; it lives, then."""
    return holder.host == socket.gethostname()


def _sign(run: Run, holder: Holder) -> Path:
    """What an agent touches as its sign of life."""
    return run.dir / "logs" / f"{holder.writer}.log"


def _by_ticks(run: Run) -> bool:
    """Whether scrontab starts its agent, which comes and goes."""
    site = run.resolved.site
    return site.scheduler == "slurm" and site.agent.where == "scrontab"


def _ticks(run: Run, ages: FileAges) -> bool:
    """Whether scrontab's agent was here lately."""
    logs = (run.dir / "logs").glob("agent-*.log")
    return _by_ticks(run) and any(_is_fresh(ages.age_s(log), _TICK_STALE_S) for log in logs)


def _is_fresh(age_s: float | None, limit_s: float = _STALE_S) -> bool:
    return age_s is not None and age_s < limit_s


def _worker(seen: SeenWorker, jobs: Mapping[str, JobState]) -> dict[str, Any]:
    beat = seen.beat
    job = jobs.get((beat.job or "").partition(".")[0])  # what follows is the step
    return {
        "id": beat.worker_id,
        "state": _worker_state(seen, job),
        "heartbeat_age_s": round(seen.age_s, 3),
        "phase": beat.phase,
        "host": beat.host,
        "device_kind": beat.device_kind,
        "judged": beat.judged,
    }


def _worker_state(seen: SeenWorker, job: JobState | None) -> str:
    """What it says of itself, `lost`, or `silent`: then its job runs, but it gives no sign of life.

    A process of this machine is looked at. Of another's, the end of its job counts before its last
    heartbeat, which may be a moment old, and that alone where Slurm is silent.
    """
    here = alive_here(seen.beat)
    if here is False or (here is None and job is not None and job.alive is False):
        return "lost"
    if here is None and not _is_fresh(seen.age_s):
        return "silent" if job is not None and job.word == "RUNNING" else "lost"
    return seen.beat.state


def _state(run: Run, views: dict[str, TaskView], agents: bool) -> str:
    if all(view.finished is not None for view in views.values()):
        return "done"
    if agents:
        return "running"
    pauses = [e[-1].event for t in run.tasks if (e := run.events(t))]
    failed = any(getattr(event, "exit_code", 0) == 1 for event in pauses)
    return "failed" if failed else "paused"


def _budget(run: Run, views: dict[str, TaskView]) -> dict[str, Any]:
    spent = [view.spent for view in views.values()]
    limits = run.resolved.workflow.budget
    return {
        "queries": sum(s.queries for s in spent),
        "queries_per_task": limits.queries_per_task,
        "evaluations": sum(s.evaluations for s in spent),
        "evaluations_per_task": limits.evaluations_per_task,
        "retimes": sum(s.retimes for s in spent),
        "usd": sum(s.usd for s in spent),
        "max_usd": limits.max_usd,
        "lane_s": sum(s.lane_s + s.retime_lane_s for s in spent),
        "max_gpu_hours": limits.max_gpu_hours,
        "wall_s": active_seconds(run.events(task) for task in run.tasks),
        "wall_minutes": limits.wall_minutes,
    }


def _task(key: str, view: TaskView) -> dict[str, Any]:
    best = {}
    for tier in Tier:
        first = leader(view, tier)
        timing = first.result.timing if first is not None else None
        best[tier.value] = (
            first
            and timing
            and {
                "speedup": timing.speedup,
                "ci95": list(timing.ci95),
                "retimed": first.retimed,
            }
        )
    return {
        "task": key,
        "judged": len(view.results),
        "waiting": len(view.unjudged) + len(view.unrequested),
        "retimed": len(view.retimed),
        "retiming": len(view.retiming),
        "best": best,
        "search_ended": view.ended or view.finished,
        "finished": view.finished,
        "paused": view.paused,
    }

"""Follow a run from its journals: live progress on stderr, the table and the paths at the end."""

from __future__ import annotations

import shlex
import sys
import time

from pike_hpc.agent import active_seconds
from pike_hpc.analysis import build_report, render_table, write_html
from pike_hpc.archive import is_current, rebuild
from pike_hpc.cli.keep import keep
from pike_hpc.cli.run import Run
from pike_hpc.cli.terminal import is_live
from pike_hpc.cli.watched import WatchedRun
from pike_hpc.config import env
from pike_hpc.journal import Stamped
from pike_hpc.mailbox import STARTING
from pike_hpc.records import EvalResult, Evaluated, Proposed, Task, Tier
from pike_hpc.search import TaskView, leader, replay

_CLEAR_LINE = "\r\x1b[K"


class Follower:
    """Shows what has happened since it last looked. Holds no lock and starts nothing."""

    def __init__(self, run: Run) -> None:
        self._run = WatchedRun.of(run)
        self._seen = {key: len(events) for key, events in self._run.journals().items()}
        self._live = is_live(sys.stderr, env.environ())
        self._began, self._since = time.monotonic(), time.time()

    def show(self) -> None:
        """A line for each new verdict and, on a terminal, one that says how things stand."""
        journals = self._run.journals()
        for task in self._run.tasks:
            events = journals[task.key]
            news, self._seen[task.key] = events[self._seen[task.key] :], len(events)
            for stamped in news:
                if isinstance(stamped.event, Evaluated):
                    self._say(_verdict(task, events, stamped.event.result) + self._left(journals))
        if self._live:
            sys.stderr.write(_CLEAR_LINE + self._standing(journals))
            sys.stderr.flush()

    def conclude(self) -> int:
        """Archive, page and table; 0, or 3 where a task has no correct candidate."""
        if self._live:
            sys.stderr.write(_CLEAR_LINE)
        archive = self._run.dir / "archive.h5"
        if not archive.exists() or not is_current(self._run.dir):
            rebuild(self._run.dir)
        report = build_report([archive])
        page = self._run.dir / "report.html"
        write_html(report, page)
        colour = is_live(sys.stdout, env.environ())
        print(render_table(report, width=100, color=colour))
        print(f"\narchive  {archive}\nreport   {page}")
        folder = shlex.quote(str(self._run.dir))
        print(f"winners  pike-hpc report {folder} --out DIR writes their code")
        kept = keep(self._run)
        if kept is not None:
            print(f"kept     {kept}")
        return 0 if all(any(task.best.values()) for task in report.tasks) else 3

    def _standing(self, journals: dict[str, tuple[Stamped, ...]]) -> str:
        views = self._run.views()
        done = sum(v.finished is not None for v in views.values())
        best = [s for v in views.values() if (s := _best_speedup(v)) is not None]
        parts = [
            self._at_work(views),
            f"{sum(len(v.results) for v in views.values())} judged",
            f"best {max(best):.2f}x" if best else "",
            f"{done}/{len(views)} tasks done",
        ]
        standing = " · ".join(p for p in parts if p) + self._left(journals)
        return f"  [{_clock(time.monotonic() - self._began)}] {standing}"

    def _at_work(self, views: dict[str, TaskView]) -> str:
        """What the workers are at: the task, and how far its candidate has come."""
        beats = [seen.beat for seen in self._run.mailbox.workers()]
        now = [
            f"{key} {beat.phase}".strip()
            for beat in beats
            for key, view in views.items()
            if beat.request_id in view.unjudged or beat.request_id in view.retiming
        ]
        starting = [beat.phase for beat in beats if beat.state == STARTING]
        if not now and len(starting) == len(beats):
            return f"starting, {starting[0]}" if starting else "starting"
        return ", ".join(now) or "waiting"

    def _left(self, journals: dict[str, tuple[Stamped, ...]]) -> str:
        wall_s = self._run.resolved.workflow.budget.wall_minutes * 60
        if not wall_s:
            return ""
        used_s = active_seconds(journals.values())
        last = max((events[-1].time for events in journals.values() if events), default=0.0)
        if last >= self._since:
            used_s += max(time.time() - last, 0.0)
        return f" · {_clock(max(wall_s - used_s, 0.0))} left"

    def _say(self, line: str) -> None:
        clear = _CLEAR_LINE if self._live else ""
        stamp = _clock(time.monotonic() - self._began)
        sys.stderr.write(f"{clear}  [{stamp}] {line}\n")
        sys.stderr.flush()


def _verdict(task: Task, events: tuple[Stamped, ...], result: EvalResult) -> str:
    operator = next(
        (
            s.event.proposal.operator
            for s in events
            if isinstance(s.event, Proposed)
            and s.event.proposal.candidate_id == result.candidate_id
        ),
        "?",
    )
    view = replay(s.event for s in events)
    again = "again, " if result.key.retime else ""
    line = f"{task.key} {task.name}: {again}{operator.removeprefix('rule:')} "
    if result.timing is not None:
        line += f"{result.timing.speedup:.2f}x at {result.tier}"
    else:
        line += f"{result.status} ({result.message})" if result.message else str(result.status)
    return line + _best(view)


def _best(view: TaskView) -> str:
    speedup = _best_speedup(view)
    best = f", best {speedup:.2f}x" if speedup else ""
    return f" · {len(view.results)} judged{best}"


def _best_speedup(view: TaskView) -> float | None:
    """What counts so far: of what was timed again, else of the search's."""
    first = leader(view, Tier.HALF)
    return first.result.timing.speedup if first and first.result.timing else None


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"

"""Verdicts an hour through the real worker, and where the rest of the time goes.

    python tests/bench/throughput.py [--seconds N] [--gpus N] [--device D] [--kinds K,K] [--out DIR]

The judges are those that `pike-hpc worker` opens, fed as the agents of several tasks feed them:
there is always more work than they can take. First half: every program's build is a new one
(cold). Second half: the very same texts again (warm). With --gpus above 1 the same runs first on
one GPU with its share of the cores, and the ratio of the rates stands in the document.
"""

import argparse
import dataclasses
import itertools
import os
import statistics
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import stamp
from mixture import HANG_TIMEOUT_S, dealt, deck, task_of

from pike_hpc.cli.lanes import open_judges
from pike_hpc.evaluate.device import detect, image_digest
from pike_hpc.machine import divide_cpus, physical_cores
from pike_hpc.mailbox import MemoryMailbox
from pike_hpc.records import EvalRequest, EvalStatus
from pike_hpc.worker import JudgeUnwell, Stop, WorkerOptions, run_worker

MODULES = (
    "cli/lanes.py",
    "evaluate/builder.py",
    "evaluate/cell.py",
    "evaluate/centre.py",
    "evaluate/judge.py",
    "evaluate/judge_anchor.py",
    "evaluate/judge_bench.py",
    "evaluate/judge_cores.py",
    "evaluate/judge_guard.py",
    "evaluate/judge_agreement.py",
    "evaluate/judge_link.py",
    "evaluate/judge_plan.py",
    "evaluate/judge_process.py",
    "evaluate/judge_room.py",
    "evaluate/judge_side.py",
    "evaluate/judge_spares.py",
    "evaluate/judge_spot_checks.py",
    "evaluate/judge_streams.py",
    "evaluate/judge_timing.py",
    "evaluate/judge_outcome.py",
    "evaluate/judge_verdict.py",
    "evaluate/judge_warm.py",
    "evaluate/lane.py",
    "evaluate/runner/compile_cache.py",
    "evaluate/runner/serve.py",
    "evaluate/statistics.py",
    "worker/backlog.py",
    "worker/loop.py",
    "worker/seats.py",
)
FIGURES = {
    "": "programs kinds gpus ratio?",
    "gpus.*": (
        "opened_s seconds cores judges cold warm alone_s_per_survivor tags statuses judges_busy "
        "surprises"
    ),
    "gpus.*.cold|gpus.*.warm": (
        "verdicts verdicts_per_hour survivors inline_build_s judge_s_by_kind judge_s_by_phase"
    ),
    "gpus.*.alone_s_per_survivor": "median p95",
    "gpus.*.cold.judge_s_by_phase.*|gpus.*.warm.judge_s_by_phase.*": "count sum median part",
}
ALONE = "timing"
"""The phase in which nothing else may use the GPU."""
TIMEOUT_S = 300.0
DRAIN_S = 90.0
"""What is under way when the time is up may end; it does not count."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Seen:
    """One evaluation as a judge's owner sees it. Times are seconds since the start."""

    program: object
    warm: bool
    began: float
    phases: list
    ended: float = 0.0
    status: EvalStatus | None = None
    tags: tuple = ()

    def spent(self):
        """Seconds by phase; `wait` is what came before the first."""
        marks = [(self.began, "wait"), *self.phases, (self.ended, "")]
        found = defaultdict(float)
        for (start, name), (end, _) in itertools.pairwise(marks):
            found[name] += end - start
        return dict(found)


class WatchedJudge:
    """Passes requests on to a judge and keeps when each phase began."""

    def __init__(self, inner, book):
        self._inner, self._book = inner, book
        self.device_kind = inner.device_kind

    def evaluate(self, request, on_phase):
        """The inner judge's verdict."""
        seen = self._book.begin(request.request_id)

        def mark(phase):
            seen.phases.append((self._book.now(), phase))
            on_phase(phase)

        try:
            result = self._inner.evaluate(request, mark)
        except JudgeUnwell as unwell:
            result = unwell.result
        seen.ended, seen.status, seen.tags = self._book.now(), result.status, result.tags
        self._book.end(seen, result)
        return result

    def close(self):
        """Close the inner judge."""
        self._inner.close()


class Book:
    """What was asked and what became of it; thread-safe as far as lists and dicts are."""

    def __init__(self):
        self._start = time.monotonic()
        self.asked, self.done, self.surprises = {}, [], []

    def now(self):
        """Seconds since the start."""
        return time.monotonic() - self._start

    def begin(self, request_id):
        """An evaluation begins."""
        program, warm = self.asked[request_id]
        return Seen(program=program, warm=warm, began=self.now(), phases=[])

    def end(self, seen, result):
        """It has ended."""
        self.done.append(seen)
        if result.status not in seen.program.expected:
            name = f"{seen.program.kind} {seen.program.name} {seen.program.task}"
            self.surprises.append(f"{name}: {result.status} {result.message}"[:300])


class Feeder(threading.Thread):
    """Keeps more in the mailbox than the judges can take, until the time is up."""

    def __init__(self, mailbox, book, device, programs, judges, seconds, stop, seed):
        super().__init__(daemon=True)
        self._mailbox, self._book, self._device = mailbox, book, device
        self._cards, self._ahead = dealt(programs, seed), 6 * judges
        self._seconds, self._stop_worker = seconds, stop
        self._asked, self._turn = [], 0

    def run(self):
        """Feed, then have the worker stop."""
        warm = False
        while (now := self._book.now()) < self._seconds:
            if not warm and now >= self._seconds / 2:
                warm = True
                self._take_back()
            while self._mailbox.counts().new < self._ahead:
                self._put(warm)
            time.sleep(0.05)
        self._stop_worker.request("the time is up")

    def _take_back(self):
        """What nobody has begun to judge has no build to find again."""
        begun = self._mailbox.withdraw([request.request_id for _, request in self._asked])
        self._asked = [each for each in self._asked if each[1].request_id in begun]

    def _put(self, warm):
        known = self._forgotten() if warm else None
        if known is None:
            program, request = self._drawn()
            self._asked.append((program, request))
        else:
            program, request = known
        self._book.asked[request.request_id] = (program, known is not None)
        self._mailbox.put(request)

    def _forgotten(self):
        """What was judged longest ago, its verdict discarded; None before any verdict is in.

        The very text again: a build is kept for the text that it was made from.
        """
        for _ in self._asked:
            program, request = self._asked[self._turn % len(self._asked)]
            self._turn += 1
            if self._mailbox.results([request.request_id]):
                self._mailbox.discard([request.request_id])
                return program, request
        return None

    def _drawn(self):
        program, number = next(self._cards)
        hangs = EvalStatus.TIMEOUT in program.expected
        return program, EvalRequest(
            task=task_of(program.task),
            candidate_source=program.make(number),
            device_kind=self._device.kind,
            image_digest=image_digest(),
            timeout_s=HANG_TIMEOUT_S if hangs else TIMEOUT_S,
        )


def drive(device, programs, seconds, seed=1, engine="auto"):
    """One worker for so long. Returns (book, number of judges, seconds until they were open)."""
    mailbox, stop, before = MemoryMailbox(), Stop(), time.monotonic()
    options = WorkerOptions(worker_id="bench", max_idle_s=None, expected_s=0.0, drain_s=DRAIN_S)
    with open_judges(device, engine, Path(tempfile.gettempdir())) as judges:
        opened_s = time.monotonic() - before
        book = Book()
        watched = [WatchedJudge(judge, book) for judge in judges]
        Feeder(mailbox, book, device, programs, len(judges), seconds, stop, seed).start()
        run_worker(mailbox, watched, options, preparer=judges[0], stop=stop)
    return book, len(judges), opened_s


def by_kind(ended):
    """Median seconds of a judge's time that a program of each kind took."""
    kinds = defaultdict(list)
    for seen in ended:
        kinds[seen.program.kind].append(seen.ended - seen.began)
    return {kind: median_of(times) for kind, times in sorted(kinds.items())}


def by_phase(ended):
    """What the judges' time of these evaluations went into."""
    phases = defaultdict(list)
    for seen in ended:
        for phase, spent in seen.spent().items():
            phases[phase].append(spent)
    busy = sum(map(sum, phases.values()))
    return {
        phase: {
            "count": len(times),
            "sum": round(sum(times), 2),
            "median": median_of(times),
            "part": round(sum(times) / busy, 3),
        }
        for phase, times in sorted(phases.items(), key=lambda item: -sum(item[1]))
    }


def table(book, seconds, judges):
    """Rates of both halves and where the time went."""
    halves = {}
    for name, start, end in (("cold", 0.0, seconds / 2), ("warm", seconds / 2, seconds)):
        ended = [s for s in book.done if start <= s.ended < end]
        halves[name] = {
            "verdicts": len(ended),
            "verdicts_per_hour": round(len(ended) * 3600 / (end - start), 1),
            "survivors": sum(s.status is EvalStatus.PASSED for s in ended),
            "inline_build_s": median_of(
                s.spent().get("build", 0.0)
                for s in ended
                if s.program.kind == "inline" and s.warm == (name == "warm")
            ),
            "judge_s_by_kind": by_kind(ended),
            "judge_s_by_phase": by_phase(ended),
        }
    survivors = [s for s in book.done if s.status is EvalStatus.PASSED]
    alone = sorted(s.spent().get(ALONE, 0.0) for s in survivors)
    busy = sum(s.ended - s.began for s in book.done)
    return {
        "seconds": seconds,
        "judges": judges,
        **halves,
        "alone_s_per_survivor": {
            "median": median_of(alone),
            "p95": round(alone[min(len(alone) - 1, int(0.95 * len(alone)))], 3) if alone else None,
        },
        "tags": dict(sorted(Counter(tag for s in survivors for tag in s.tags).items())),
        "statuses": dict(sorted(Counter(str(s.status) for s in book.done).items())),
        "judges_busy": round(busy / (seconds * judges), 3),
        "surprises": sorted(set(book.surprises)),
    }


def median_of(values):
    """Their median, to the millisecond; None without any."""
    found = list(values)
    return round(statistics.median(found), 3) if found else None


def main():
    """Run it."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--seconds", type=float, default=240.0, help="of work in all (240)")
    words.add_argument("--device", default="auto")
    words.add_argument("--gpus", type=int, default=1, help="above 1: these and one, and the ratio")
    words.add_argument("--kinds", help="of programs: inline,triton,compile,torch,broken (all)")
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--out", type=Path, help="folder for the JSON; stdout without it")
    asked = words.parse_args()
    device = detect(asked.device, visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    if asked.gpus > max(1, len(device.gpus)):
        words.error(f"--gpus {asked.gpus}: there are {len(device.gpus)} ({device.why})")
    kinds = set(asked.kinds.split(",")) if asked.kinds else None
    programs = deck(device.torch_device, kinds)
    counts = [1] if asked.gpus == 1 else [1, asked.gpus]
    cpus = os.sched_getaffinity(0)
    shares = divide_cpus(cpus, asked.gpus, physical_cores(cpus))
    runs = {}
    for count in counts:
        seconds = asked.seconds / len(counts)
        part = dataclasses.replace(device, gpus=device.gpus[:count])
        own = cpus if count == asked.gpus else frozenset().union(*shares[:count])
        os.sched_setaffinity(0, own)
        book, judges, opened_s = drive(part, programs, seconds, asked.seed)
        found = {"opened_s": round(opened_s, 2), "cores": len(own)}
        runs[str(count)] = {**found, **table(book, seconds, judges)}
    document = {
        **stamp.stamp("throughput", MODULES, device.torch_device),
        "programs": len(programs),
        "kinds": dict(sorted(Counter(p.kind for p in programs).items())),
        "gpus": runs,
    }
    if asked.gpus > 1:
        rates = [sum(run[h]["verdicts"] for h in ("cold", "warm")) for run in runs.values()]
        document["ratio"] = round(rates[1] / rates[0], 2) if rates[0] else None
    stamp.write(document, asked.out)
    stamp.check(document, FIGURES)


if __name__ == "__main__":
    main()

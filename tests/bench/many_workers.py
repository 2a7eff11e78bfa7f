"""How busy one agent and one mailbox keep many workers.

    python tests/bench/many_workers.py [--workers N] [--verdict-s S] [--seconds S] [--out DIR]

A real `pike-hpc agent` searches with a model that takes its time, on a real mailbox on disk; N
processes run the worker's loop, each with a judge that only waits: S seconds on average, from half
to one and a half of it. Nothing is scaled: a second is a second. Measured from when every worker
has given its first verdict. Exit status 1 where the workers were less busy than wanted.
"""

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import endless
import stamp

from pike_hpc.cli.run import Run
from pike_hpc.worker import SimulatedJudge, WorkerOptions, run_worker

MODULES = (
    "agent/agent.py",
    "agent/controller.py",
    "agent/queries.py",
    "worker/judge_thread.py",
    "worker/loop.py",
    "worker/options.py",
    "worker/pace.py",
)
FIGURES = {
    "": (
        "workers verdict_s seconds model_answers_in_s file_system wanted busy least_busy_worker "
        "verdicts pause_between_verdicts_ms good_enough"
    ),
    "wanted": "busy",
    "pause_between_verdicts_ms": "median p95",
}
ENOUGH = 0.95
TASKS = 30
ANSWER_S = 5.0
"""What the model takes to answer."""
START_S = 300.0
"""Patience until every worker is at work."""


class Watched:
    """The judge that only waits; writes down when it was at it."""

    def __init__(self, verdict_s, log):
        self._judge = SimulatedJudge(endless.DEVICE, seed=1, latency_s=verdict_s)
        self._log = log
        self.device_kind = endless.DEVICE

    def evaluate(self, request, on_phase):
        began = time.monotonic()
        try:
            return self._judge.evaluate(request, on_phase)
        finally:
            with self._log.open("a") as file:
                file.write(json.dumps([began, time.monotonic()]) + "\n")

    def close(self):
        self._judge.close()


def work(run_dir, number, verdict_s, log):
    """One worker's process."""
    options = WorkerOptions(worker_id=f"bench-{number}", max_idle_s=None, drain_s=0.0)
    run_worker(Run.open(run_dir).mailbox, [Watched(verdict_s, log)], options)


def main():
    """Start all, watch, stop, count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=64, metavar="N")
    parser.add_argument("--verdict-s", type=float, default=10.0, metavar="S")
    parser.add_argument("--seconds", type=float, default=180.0, metavar="S")
    parser.add_argument("--tmp", type=Path, metavar="DIR", help="a folder on a disk")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: stdout")
    options = parser.parse_args()
    document = stamp.stamp("many_workers", MODULES)
    with (
        tempfile.TemporaryDirectory(dir=options.tmp) as folder,
        endless.served(ANSWER_S) as url,
    ):
        place = Path(folder)
        run = endless.make_run(
            place, name="many-workers", url=url, tasks=TASKS, workers=options.workers
        )
        logs = [place / f"worker-{number}.jsonl" for number in range(options.workers)]
        with at_work(run, logs, options.verdict_s):
            begin = until_all_are(logs)
            time.sleep(options.seconds)
            end = time.monotonic()
        document |= {
            "workers": options.workers,
            "verdict_s": options.verdict_s,
            "seconds": round(end - begin, 1),
            "model_answers_in_s": ANSWER_S,
            "file_system": file_system(place),
            "wanted": {"busy": ENOUGH},
            **count(logs, begin, end),
        }
    document["good_enough"] = document["busy"] >= ENOUGH
    stamp.write(document, options.out)
    stamp.check(document, FIGURES)
    return 0 if document["good_enough"] else 1


@contextlib.contextmanager
def at_work(run, logs, verdict_s):
    """The workers and the agent, until the end of the block."""
    forked = multiprocessing.get_context("fork")
    workers = [
        forked.Process(target=work, args=(run.dir, number, verdict_s, log))
        for number, log in enumerate(logs)
    ]
    for worker in workers:
        worker.start()
    agent = subprocess.Popen([sys.executable, "-m", "pike_hpc", "agent", str(run.dir)])
    try:
        yield
    finally:
        for pid in [agent.pid, *(worker.pid for worker in workers)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        try:
            agent.wait(60)
        except subprocess.TimeoutExpired:
            agent.kill()  # what was measured is over, and is not to be lost for that
            agent.wait()
        for worker in workers:
            worker.join(60)


def until_all_are(logs):
    """When the last worker had ended its first verdict."""
    patience = time.monotonic() + START_S
    while not all(log.exists() for log in logs):
        if time.monotonic() > patience:
            raise SystemExit("the workers did not all come to work")
        time.sleep(0.5)
    return time.monotonic()


def count(logs, begin, end):
    """How the workers spent the time from `begin` to `end`."""
    busy, pauses, verdicts = [], [], 0
    for log in logs:
        spans = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
        inside = [(max(a, begin), min(b, end)) for a, b in spans if b > begin and a < end]
        busy.append(sum(b - a for a, b in inside) / (end - begin))
        pairs = itertools.pairwise(inside)
        pauses += [later[0] - earlier[1] for earlier, later in pairs]
        verdicts += sum(begin < b <= end for _, b in spans)
    return {
        "busy": round(statistics.mean(busy), 4),
        "least_busy_worker": round(min(busy), 4),
        "verdicts": verdicts,
        "pause_between_verdicts_ms": spread_ms(pauses),
    }


def spread_ms(pauses):
    """Their middle and their end; None where no worker gave two verdicts."""
    if len(pauses) < 2:
        return None
    return {
        "median": round(1000 * statistics.median(pauses), 1),
        "p95": round(1000 * statistics.quantiles(pauses, n=20)[-1], 1),
    }


def file_system(folder):
    """Its kind, such as ext4."""
    asked = ["stat", "--file-system", "--format=%T", str(folder)]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

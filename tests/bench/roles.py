"""What it does to a program that it is stopped while another is timed, and a rest before each half.

    python tests/bench/roles.py [--tasks TASK,TASK] [--rests MS,MS] [--blocks N] [--device D]
                                [--out DIR]

Two processes of one reference by turns, with the judge's own link and windows. One is stopped while
the other is timed, as a candidate is, or is not; which of them changes from block to block, so that
a process that is slower for life is so on both sides. All cases take turns as well, in stretches.
"""

import argparse
import itertools
import math
import os
import statistics
import tempfile
import time
from pathlib import Path

import stamp
import torch
from null_constant import PlainHost

from pike_hpc.evaluate.judge_bench import Bench
from pike_hpc.evaluate.judge_cores import on_own_core, spin_cpus
from pike_hpc.evaluate.judge_link import RunnerLink
from pike_hpc.evaluate.judge_memory import best_place
from pike_hpc.evaluate.judge_secrets import Secrets
from pike_hpc.evaluate.judge_side import Side
from pike_hpc.evaluate.judge_spares import Spares
from pike_hpc.evaluate.judge_truth import WeightsBy
from pike_hpc.evaluate.runner import Op, Source
from pike_hpc.evaluate.statistics import candidate_first, windows_per_half
from pike_hpc.evaluate.wire import RunnerRole
from pike_hpc.tasks import find_task

MODULES = (
    "evaluate/judge_cores.py",
    "evaluate/judge_link.py",
    "evaluate/judge_shared.py",
    "evaluate/judge_side.py",
    "evaluate/runner/doorbell.py",
    "evaluate/runner/protocol.py",
    "evaluate/runner/serve.py",
    "evaluate/statistics.py",
)
FIGURES = {
    "": "rows",
    "rows.*": "task latency_ms calls windows blocks cases",
    "rows.*.cases.*": "rest_ms stopped ratio half_width spread",
}
TASKS, RESTS_MS = "4,33", "0,5,20"
"""Of level3-pike: short models, which a few milliseconds are much of."""
TIMEOUT_S = 600.0
STRETCH, WARM_BLOCKS = 20, 4
"""Blocks of a case before another has its turn, and such before them that do not count: what a
machine remembers of the rests before is part of a case."""


class Pair:
    """Two runners of a task's reference, and fresh inputs for both."""

    def __init__(self, task, device, folder):
        self._secrets, self._drawn = Secrets(os.urandom(32)), itertools.count()
        self.host = PlainHost(folder, device)
        place, _ = best_place(device)
        self._bench = Bench(task, Spares(self.host, {}), device, place, self._secrets)
        first = self._bench.reference(WeightsBy.STATE, self._secrets)
        second = RunnerLink(self.host, RunnerRole.WIDE)
        second.attach(self._bench.shared(WeightsBy.STATE), None)
        self.links = (first, second)
        for link in self.links:
            link.allow(TIMEOUT_S)
        second.do(Op.IMPORT)
        second.do(Op.LOAD, source=Source.STATE)
        self._truth, _ = self._bench.truth(WeightsBy.STATE)
        self.calls = first.places
        (window,) = self.fresh(1)
        room = first.spaces(self.calls)
        self.latency_ms = statistics.median(first.windows(Op.CALL, window, room) for _ in range(5))
        self.windows = windows_per_half(self.latency_ms * self.calls)
        self.sides = tuple(Side(link) for link in self.links)
        for side in self.sides:
            side.make_room(self.windows, self.calls)
        self._warmth, self._blocks = self.fresh(1)[0][:1], itertools.count()

    def fresh(self, count):
        """So many windows of inputs that nobody has seen."""
        seed = self._secrets.seed("window", next(self._drawn))
        packed = self._truth.pack_fresh(seed, count * self.calls)
        staged = [self.links[0].staged(each) for each in packed]
        return [tuple(staged[i * self.calls : (i + 1) * self.calls]) for i in range(count)]

    def stretch(self, rest_s, stops):
        """Logarithms of so many blocks, as `block` tells them."""
        found = [
            self.block(rest_s, stops, swapped=number % 2 == 1)
            for number in range(WARM_BLOCKS + STRETCH)
        ]
        return found[WARM_BLOCKS:]

    def block(self, rest_s, stops, swapped):
        """Logarithm of the free one's latency over that of the one that may be stopped."""
        free, held = (self.sides[1], self.sides[0]) if swapped else self.sides
        windows, took = self.fresh(self.windows), {}
        number = next(self._blocks)
        for side in (held, free) if candidate_first(number) else (free, held):
            stopped = stops and side is free
            if stopped:
                self.host.stop(held.link.number)
            time.sleep(rest_s)
            took[side is free] = statistics.median(side.run(windows, warmth=self._warmth))
            if stopped:
                self.host.go(held.link.number)
        return math.log(took[True] / took[False])

    def close(self):
        """End both."""
        self.links[1].end()
        self._bench.close()


def measured(task, device, rests_ms, blocks):
    """The row of one task."""
    cases = list(itertools.product(rests_ms, (True, False)))
    logs = {case: [] for case in cases}
    with tempfile.TemporaryDirectory(prefix="pike-roles-") as folder:
        pair = Pair(task, device, Path(folder))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # those of the judge sleep while models are timed
        try:
            with on_own_core(spin_cpus(device.type)[0]):
                for _ in range(blocks // STRETCH):
                    for rest_ms, stops in cases:
                        logs[rest_ms, stops] += pair.stretch(rest_ms / 1e3, stops)
        finally:
            torch.set_num_threads(threads)
            pair.close()
    return {
        "task": task.key,
        "latency_ms": round(pair.latency_ms, 4),
        "calls": pair.calls,
        "windows": pair.windows,
        "blocks": len(logs[cases[0]]),
        "cases": [told(*case, logs[case]) for case in cases],
    }


def told(rest_ms, stops, logs):
    """One case; the half-width is that of the ratio's 95 % interval."""
    spread = statistics.stdev(logs)
    return {
        "rest_ms": rest_ms,
        "stopped": stops,
        "ratio": round(math.exp(statistics.mean(logs)), 4),
        "half_width": round(1.96 * spread / math.sqrt(len(logs)), 4),
        "spread": round(spread, 4),
    }


def main():
    """Run it."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--tasks", default=TASKS, help=f"of level3-pike ({TASKS})")
    words.add_argument("--rests", default=RESTS_MS, help=f"milliseconds ({RESTS_MS})")
    words.add_argument(
        "--blocks", type=int, default=100, help="of each case, in stretches of 20 (100)"
    )
    words.add_argument("--device", choices=("cpu", "cuda"))
    words.add_argument("--out", type=Path, help="folder for the JSON; stdout without it")
    asked = words.parse_args()
    device = torch.device(asked.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    rests_ms = [float(word) for word in asked.rests.split(",")]
    tasks = [find_task(f"level3-pike/{number}") for number in asked.tasks.split(",")]
    document = {
        **stamp.stamp("roles", MODULES, device.type),
        "rows": [measured(task, device, rests_ms, asked.blocks) for task in tasks],
    }
    stamp.write(document, asked.out)
    stamp.check(document, FIGURES)


if __name__ == "__main__":
    main()

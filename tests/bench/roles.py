"""What it does to a program that it is stopped while another is timed, and a rest before each half.

    python tests/bench/roles.py [--tasks TASK,TASK] [--rests MS,MS] [--blocks N] [--device D]
                                [--out DIR]

Two processes of one reference by turns, with the judge's own link and windows. The second is
stopped while the first is timed, as a candidate is, or is not. The two are equally fast: a ratio
other than 1 is what the roles do, its spread from block to block is what an interval is made of.
"""

import argparse
import itertools
import math
import os
import statistics
import tempfile
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
WARM_BLOCKS = 3
"""They do not count."""


class Pair:
    """Two runners of a task's reference, and fresh inputs for both."""

    def __init__(self, task, device, folder):
        self._secrets, self._drawn = Secrets(os.urandom(32)), itertools.count()
        self.host = PlainHost(folder, device)
        place, _ = best_place(device)
        self._bench = Bench(task, Spares(self.host, 0), device, place, self._secrets)
        first = self._bench.reference(WeightsBy.STATE, self._secrets)
        second = RunnerLink(self.host, "candidate")
        second.attach(self._bench.shared(WeightsBy.STATE), None)
        self.links = (first, second)
        for link in self.links:
            link.allow(TIMEOUT_S)
        second.do(Op.IMPORT)
        second.do(Op.LOAD, source=Source.STATE)
        self._truth, _ = self._bench.truth(WeightsBy.STATE)
        self.calls = first.places
        (window,) = self.fresh(1)
        self.latency_ms = statistics.median(first.windows(Op.CALL, window, first.spaces(self.calls))
                                            for _ in range(5))  # fmt: skip
        self.windows = windows_per_half(self.latency_ms * self.calls)

    def fresh(self, count):
        """So many windows of inputs that nobody has seen."""
        seed = self._secrets.seed("window", next(self._drawn))
        packed = self._truth.pack_fresh(seed, count * self.calls)
        staged = [self.links[0].staged(each) for each in packed]
        return [tuple(staged[i * self.calls : (i + 1) * self.calls]) for i in range(count)]

    def case(self, rest_ms, stopped, blocks):
        """How the second compares with the first over so many blocks."""
        sides = [Side(link, rest_s=rest_ms / 1e3) for link in self.links]
        for side in sides:
            side.make_room(self.windows, self.calls)
        warmth = self.fresh(1)[0][:1]
        second = self.links[1].number
        logs = []
        for number in range(-WARM_BLOCKS, blocks):
            windows, took = self.fresh(self.windows), {}
            reverse = candidate_first(number)
            for index in (1, 0) if reverse else (0, 1):
                if stopped and index == 0:
                    self.host.stop(second)
                took[index] = statistics.median(sides[index].run(windows, warmth=warmth))
                if stopped and index == 0:
                    self.host.go(second)
            if number >= 0:
                logs.append(math.log(took[0] / took[1]))
        spread = statistics.stdev(logs)
        return {
            "rest_ms": rest_ms,
            "stopped": stopped,
            "ratio": round(math.exp(statistics.mean(logs)), 4),
            "half_width": round(1.96 * spread / math.sqrt(blocks), 4),
            "spread": round(spread, 4),
        }

    def close(self):
        """End both."""
        self.links[1].end()
        self._bench.close()


def measured(task, device, rests_ms, blocks):
    """The row of one task."""
    with tempfile.TemporaryDirectory(prefix="pike-roles-") as folder:
        pair = Pair(task, device, Path(folder))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # those of the judge sleep while models are timed
        try:
            with on_own_core(spin_cpus(device.type)[0]):
                cases = [
                    pair.case(rest_ms, stopped, blocks)
                    for rest_ms in rests_ms
                    for stopped in (True, False)
                ]
        finally:
            torch.set_num_threads(threads)
            pair.close()
    return {
        "task": task.key,
        "latency_ms": round(pair.latency_ms, 4),
        "calls": pair.calls,
        "windows": pair.windows,
        "blocks": blocks,
        "cases": cases,
    }


def main():
    """Run it."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--tasks", default=TASKS, help=f"of level3-pike ({TASKS})")
    words.add_argument("--rests", default=RESTS_MS, help=f"milliseconds ({RESTS_MS})")
    words.add_argument("--blocks", type=int, default=100, help="of each case (100)")
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

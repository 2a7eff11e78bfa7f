"""How often the judge's interval holds the truth, on simulated machines.

    python tests/bench/intervals.py [--trials N] [--processes N] [--out DIR]

For each fault of a machine and each level of noise: how often the interval of a fixed number of
blocks holds the true speedup, how often the interval does at which the judge stops measuring, and
how often a candidate that is exactly at the limit is let go early. 3,000 trials take about 20
minutes of one core.
"""

import argparse
import math
import multiprocessing
import random
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import stamp

from pike_hpc.evaluate.statistics import (
    Block,
    Null,
    StopRule,
    candidate_first,
    decide,
    estimate,
    side_apart,
)

MODULES = ("evaluate/centre.py", "evaluate/statistics.py")
FIGURES = {
    "": (
        "trials seed half_width fixed_lowest fixed_highest at_stop_lowest at_stop_highest "
        "let_go_wrongly_highest rows"
    ),
    "rows.*": "fault noise fixed at_stop blocks_at_stop let_go_wrongly",
}
TRUTH = 1.25
BLOCKS = 40
"""What 2 s hold of 25 ms a side."""
COUNTS = (5, 6, 7, 8, 10, 12, 15, 20, 25, 30)
NOISES = (0.004, 0.008, 0.012, 0.02, 0.05)
HALF_WIDTH = 0.01
WINDOWS = 5
FREE = Null(ms=0.0, spread_ms=0.0)
"""A protocol that takes no time of its own."""
TAILED = 1.27
"""What neighbours of a t law with 3 degrees of freedom are apart, beside those of a normal one."""
BLOCK_S = 0.2
"""Said to have passed after each block: no early end is put off by the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong with a machine, beside its noise. Slowness is a factor's logarithm."""

    tails: bool = False
    """Noise of a t law with 3 degrees of freedom."""
    drift: float = 0.0
    """How much slower everything is after BLOCKS blocks."""
    throttle: float = 0.0
    """How much slower everything is from some half on."""
    memory: float = 0.0
    """Correlation of a neighbour's load from one half to the next."""
    disturbed: float = 0.0
    """Part of the blocks of which one half takes 1.1 to 3 times as long."""
    clock_ms: float = 0.0
    """The clock's step."""
    windows: int = WINDOWS
    """Of a half."""


FAULTS = {
    "none": Fault(),
    "drift": Fault(drift=0.1),
    "throttle": Fault(throttle=0.3),
    "neighbour who changes slowly": Fault(memory=0.9),
    "neighbour who changes": Fault(memory=0.6),
    "disturbed blocks": Fault(disturbed=0.05),
    "heavy tails": Fault(tails=True),
    "coarse clock": Fault(clock_ms=0.005),
    "one window a half": Fault(windows=1),
    "all of them": Fault(
        tails=True, drift=0.1, throttle=0.2, memory=0.8, disturbed=0.05, clock_ms=0.001
    ),
}


class Machine:
    """Times the reference and a candidate TRUTH times as fast, half after half.

    TRUTH is what many processes show: in this one the candidate is faster or slower than that, by
    as much as the judge takes real machines to be, whose windows are as noisy.
    """

    def __init__(self, fault, noise, rng):
        self.fault, self.noise, self.rng = fault, noise, rng
        self.halves = 0
        self.load = rng.gauss(0, 1)
        self.reference_ms = rng.uniform(0.9, 1.1)
        self.throttles_at = rng.randrange(2 * BLOCKS)
        spread = noise * (TAILED if fault.tails else 1.0)
        spread *= 1.0 if fault.windows > 1 else math.sqrt(2)  # the half's noise is seen as well
        apart = side_apart(spread) / 1.96
        self.candidate_ms = self.reference_ms / TRUTH * math.exp(rng.gauss(0, apart))

    def half(self, ms):
        """Latencies of the windows of one half."""
        fault = self.fault
        slow = fault.drift * self.halves / (2 * BLOCKS)
        slow += fault.throttle * (self.halves >= self.throttles_at)
        if fault.memory:
            slow += self.noise * self.load
            rest = math.sqrt(1 - fault.memory**2)
            self.load = fault.memory * self.load + rest * self.rng.gauss(0, 1)
        slow += self.draw()
        self.halves += 1
        return [self.read(ms * math.exp(slow + self.draw())) for _ in range(fault.windows)]

    def draw(self):
        """A piece of noise, of a half or of a window."""
        if not self.fault.tails:
            return self.noise * self.rng.gauss(0, 1)
        return self.noise * self.rng.gauss(0, 1) / math.sqrt(self.rng.gammavariate(1.5, 2 / 3))

    def read(self, ms):
        """What the clock says."""
        step = self.fault.clock_ms
        if not step:
            return ms
        phase = self.rng.random()
        return max(1, math.floor(ms / step + phase)) * step

    def block(self, number):
        """Two halves, in the judge's order; perhaps one of them disturbed."""
        times = {}
        first = candidate_first(number)
        hit = self.rng.random() < self.fault.disturbed
        victim, factor = self.rng.random() < 0.5, self.rng.uniform(1.1, 3.0)
        for is_candidate in (first, not first):
            taken = self.half(self.candidate_ms if is_candidate else self.reference_ms)
            if hit and is_candidate == victim:
                taken = [x * factor for x in taken]
            times[is_candidate] = tuple(taken)
        return Block(reference_ms=times[False], candidate_ms=times[True])


def trial(fault, noise, seed, last=BLOCKS):
    """One measurement: which fixed counts held the truth, the stop's, and whether it ended early.

    Stops at `last` blocks at the latest.

    Returns:
        ({count: held}, held at the stop, blocks at the stop, let go early)
    """
    rng = random.Random(seed)
    machine = Machine(fault, noise, rng)
    rule = StopRule(half_width=HALF_WIDTH, budget_s=last * BLOCK_S, early_below=0.0)
    limit = StopRule(half_width=0.0, budget_s=math.inf, early_below=TRUTH)
    blocks, held, stopped, early = [], {}, None, False
    for count in range(1, last + 1):
        blocks.append(machine.block(count - 1))
        if count < limit.early_blocks:
            continue
        found = estimate(blocks, FREE)
        holds = found.ci95[0] <= TRUTH <= found.ci95[1]
        if count in COUNTS:
            held[count] = holds
        if stopped is None:
            over = count == last or decide(found, count, count * BLOCK_S, rule).stop
            stopped = (holds, count) if over else None
        early = early or decide(found, count, count * BLOCK_S, limit).early
    assert stopped is not None
    return held, *stopped, early


def cell(task):
    """All trials of one fault at one noise."""
    name, noise, trials, seed = task
    seeds = random.Random(f"{seed} {name} {noise}")
    found = [trial(FAULTS[name], noise, seeds.getrandbits(64)) for _ in range(trials)]
    return {
        "fault": name,
        "noise": noise,
        "fixed": {str(n): round(fmean(held[n] for held, *_ in found), 4) for n in COUNTS},
        "at_stop": round(fmean(at_stop for _, at_stop, *_ in found), 4),
        "blocks_at_stop": median(count for _, _, count, _ in found),
        "let_go_wrongly": round(fmean(early for *_, early in found), 4),
    }


def main():
    """Run all of it."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--trials", type=int, default=3000, help="of each fault and noise (3000)")
    words.add_argument("--processes", type=int, default=1)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--out", type=Path, help="folder for the JSON; stdout without it")
    asked = words.parse_args()
    tasks = [(name, noise, asked.trials, asked.seed) for name in FAULTS for noise in NOISES]
    with multiprocessing.Pool(asked.processes) as pool:
        rows = pool.map(cell, tasks, chunksize=1)
    fixed = [value for row in rows for value in row["fixed"].values()]
    document = {
        **stamp.stamp("intervals", MODULES),
        "trials": asked.trials,
        "seed": asked.seed,
        "half_width": HALF_WIDTH,
        "fixed_lowest": min(fixed),
        "fixed_highest": max(fixed),
        "at_stop_lowest": min(row["at_stop"] for row in rows),
        "at_stop_highest": max(row["at_stop"] for row in rows),
        "let_go_wrongly_highest": max(row["let_go_wrongly"] for row in rows),
        "rows": rows,
    }
    stamp.write(document, asked.out)
    stamp.check(document, FIGURES)


if __name__ == "__main__":
    main()

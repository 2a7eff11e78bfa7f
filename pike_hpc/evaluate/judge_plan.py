"""How many windows and calls a block of a timing has, and when there are enough of them."""

from __future__ import annotations

from dataclasses import dataclass

from pike_hpc.evaluate.judge_link import RunnerLink
from pike_hpc.evaluate.statistics import StopRule

SLOW_MS = 50.0
"""From here on one call tells the latency well enough to plan by."""
NULL_WINDOWS = 4
"""Of each block, at most."""
POOL_BYTES = 1 << 30
"""Inputs and both sides' outputs of one block stay below this, at the price of fewer windows."""

REPLAN = 2
"""Times the calls of a block that a plan of what was measured must ask for to take another's place.
From one call to the most that a block has it doubles eight times, so a timing rarely begins anew,
and nine times at most."""

FEWEST_LOOKS, LOOKS, LOOKED_AT = 2, 5, 1 / 4
"""Windows of a half, secretly chosen, after which the candidate must have left its inputs alone: so
many at least and at most, and such a part between, since a look leaves other things in a cache. An
estimate moves where inputs are changed in half of the windows of 0.29 of the blocks: of two such
blocks one of 20 windows is met in all but 1 of 1,000 timings, one of 8 in all but 1 of 16."""

SEARCH_BUDGET_S, RETIME_BUDGET_S = {"cpu": 2.0, "cuda": 0.7}, 4.0
"""Seconds of timing. What is timed again is few, and enters tables. All other lanes of a GPU are
frozen meanwhile: with 1.0 s in place of 0.7 they were so for half of the time."""
SEARCH_PATIENCE, RETIME_PATIENCE = {"cpu": 3.0, "cuda": 1.0}, 3.0
"""`StopRule.patience`. For the same reason, and a host that is noisy stays so: on two H200s 18 of
52 timings of a search took up to three times their budget, and 11 of these ended as loose as before
(a log of each in tests/bench/throughput.py, which is not kept, 2026-11-28)."""
HALF_WIDTH = {"cpu": 0.02, "cuda": 0.01}
"""When an interval is narrow enough; a CPU shared with the system is noisier."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Of a block."""

    windows: int
    """Of each half."""
    calls: int
    """That share a window."""
    warm: bool
    """Whether a call that is not timed comes before each half."""

    @property
    def looks(self) -> int:
        """After how many windows one looks whether inputs were left alone."""
        return max(FEWEST_LOOKS, min(LOOKS, int(LOOKED_AT * self.windows)))

    def is_short_of(self, other: Plan) -> bool:
        """Whether it asks for so much less that its blocks say less than the other's would."""
        few = REPLAN * self.windows * self.calls <= other.windows * other.calls
        return few or (other.warm and not self.warm)


def affordable(link: RunnerLink, windows: int, calls: int) -> int:
    """As many of the windows as POOL_BYTES hold, one at least."""
    input_bytes, output_bytes = link.sizes
    return max(1, min(windows, POOL_BYTES // ((input_bytes + 2 * output_bytes) * calls)))


def stop_rule(device_type: str, *, again: bool) -> StopRule:
    """When enough is known, in a search or where it is timed `again`."""
    return StopRule(
        half_width=HALF_WIDTH[device_type],
        budget_s=RETIME_BUDGET_S if again else SEARCH_BUDGET_S[device_type],
        patience=RETIME_PATIENCE if again else SEARCH_PATIENCE[device_type],
    )

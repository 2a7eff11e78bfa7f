"""How long the reference takes before any candidate is there to slow it.

Whatever a candidate leaves on a GPU, in kernels or in copies, it can leave only once it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import torch

from pike_hpc.evaluate.judge_link import RunnerLink
from pike_hpc.evaluate.judge_timing import NULL_WINDOWS, SLOW_MS, Side
from pike_hpc.evaluate.runner import Op
from pike_hpc.evaluate.statistics import Null, without_null

WINDOWS = 7
"""Of one call each; one suffices of a call that takes long."""


def alone_ms(reference: RunnerLink, fresh_inputs: Callable[[int], Sequence[torch.Tensor]]) -> float:
    """Latency of one call in milliseconds, as `Stopwatch` tells it. Raises RunnerFailed.

    Args:
        reference: its runner, holding the judging weights.
        fresh_inputs: so many inputs that were never seen.
    """
    side = Side(reference)
    side.make_room(1, 1)

    def latency_ms(op: Op = Op.CALL) -> float:
        window = (reference.staged(fresh_inputs(1)[0]),)
        return side.run([window], op, warmth=window)[0]

    first = latency_ms()
    count = 1 if first > SLOW_MS else WINDOWS
    taken = median(latency_ms() for _ in range(count))
    return without_null(taken, Null.of([latency_ms(Op.NULL) for _ in range(NULL_WINDOWS)]))

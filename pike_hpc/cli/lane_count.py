"""How many lanes there are: on a GPU, and in all workers of a run. Opens none."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pike_hpc.cli.run import Run
from pike_hpc.config import env
from pike_hpc.evaluate.device import MAX_LANES, detect, lanes_per_gpu, smallest_memory_mb
from pike_hpc.launch import expected_lanes
from pike_hpc.records import UsageError


def lanes_of(run: Run) -> int:
    """How many requests its workers judge at once. A tape's run must not depend on the machine."""
    try:
        visible = env.environ().get("CUDA_VISIBLE_DEVICES")
        # Whether their torch can use them is found out by those who judge.
        gpus = detect(run.device_kind, visible=visible, torch=lambda: None).gpus
    except UsageError:  # the agent's machine has none: it only searches
        gpus = ()
    cores = len(os.sched_getaffinity(0)) // max(len(gpus), 1)
    return expected_lanes(run.resolved, len(gpus), lanes_each(cores, gpus))


def lanes_each(cores: int, gpus: Sequence[str]) -> int:
    """Lanes that share each GPU: as many as there is room for, fewer by PIKE_LANES_PER_GPU.

    Args:
        cores: CPU cores for each GPU.
        gpus: UUIDs; none on a CPU, which has one lane.

    Raises:
        UsageError: it is no whole number from 1 on.
    """
    asked = env.environ().get("PIKE_LANES_PER_GPU", str(MAX_LANES))
    if not asked.isdecimal() or int(asked) < 1:
        raise UsageError(
            f"PIKE_LANES_PER_GPU is {asked!r}", valid="a whole number from 1 on", fix="unset it"
        )
    if int(asked) == 1 or not gpus:
        return 1
    return min(int(asked), lanes_per_gpu(cores, smallest_memory_mb(gpus)))

"""What `pike-hpc evaluate` says of a verdict."""

from builders.results import key_of, passed, timed

from pike_hpc.cli.evaluate import describe
from pike_hpc.evaluate.device import Device
from pike_hpc.tasks import find_task

CPU = Device(kind="cpu", torch_device="cpu", why="")


def test_a_ratio_that_is_not_that_of_the_two_times_is_explained():
    """It is that of blocks, side by side; the times are medians of all of them."""
    task = find_task("level3-pike/4")
    timing = timed(1.19, candidate_ms=3.54, reference_ms=3.6, windows=12)
    said = describe(task, passed(key_of(task.digest, "c" * 64), 1.19, timing=timing), CPU)
    assert "PASSED  1.19x over eager" in said
    assert "3.54 ms against 3.6 ms: medians of all 12 windows; the speedup compares neigh" in said

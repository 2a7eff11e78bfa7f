"""What `pike-hpc evaluate` says of a verdict."""

import re
from pathlib import Path

from builders.results import key_of, passed, timed

from pike_hpc.cli.evaluate import TAGS, describe
from pike_hpc.evaluate.device import Device
from pike_hpc.tasks import find_task

CPU = Device(kind="cpu", torch_device="cpu", why="")


def test_a_ratio_that_is_not_that_of_the_two_times_is_explained():
    """It is that of blocks, side by side; the times are medians of all of them."""
    task = find_task("level3-pike/4")
    timing = timed(1.19, candidate_ms=3.54, reference_ms=3.6, windows=12)
    said = describe(task, passed(key_of(task.digest, "c" * 64), 1.19, timing=timing), CPU)
    assert "PASSED  1.19x over eager" in said
    assert "3.54 ms, eager 3.6 ms: medians of all 12 windows; the speedup compares neigh" in said
    assert "go by the speedup" in said


def test_times_that_agree_with_the_speedup_are_not_called_drifted():
    task = find_task("level3-pike/4")
    timing = timed(1.5, candidate_ms=2.0, reference_ms=3.0, ci95=(1.4, 1.6))
    said = describe(task, passed(key_of(task.digest, "c" * 64), 1.5, timing=timing), CPU)
    assert "2 ms, eager 3 ms" in said
    assert "go by the speedup" not in said


def test_each_tag_there_is_is_explained():
    docs = Path(__file__).resolve().parents[2] / "docs/evaluator.md"
    listed = docs.read_text("utf-8").partition("## Tags (closed list)")[2].partition("\n## ")[0]
    assert set(re.findall(r"`([a-z_]+)`", listed)) == set(TAGS)
    task = find_task("level3-pike/4")
    said = describe(task, passed(key_of(task.digest, "c" * 64), 1.0, tags=("noisy",)), CPU)
    assert "noisy: others were at work" in said

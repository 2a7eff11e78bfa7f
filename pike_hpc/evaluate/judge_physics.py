"""What a task's call must move and compute, and the gate made of it: faster than physics allows.

Input bytes count as far as they were seen to matter: 32 bytes (what a GPU reads at once) at places
drawn at random are replaced by those of another input, and the reference's answer must change.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from pike_hpc.evaluate.judge_marks import Verdict
from pike_hpc.evaluate.judge_memory import views
from pike_hpc.evaluate.judge_room import give_back
from pike_hpc.evaluate.judge_truth import Truth
from pike_hpc.evaluate.layout import buffer_bytes
from pike_hpc.evaluate.physics import (
    Peaks,
    Work,
    bounds_copies,
    impossible,
    limits,
    peaks_of,
    sure_part,
)
from pike_hpc.evaluate.runner import unflatten
from pike_hpc.records import EvalStatus, Tier, Timing
from pike_hpc.tasks.load import LoadedTask

SECTOR_BYTES = 32
"""The least that a GPU reads from memory."""
TRIALS = 32
"""Places tried: where all matter, 87 % of the input are counted."""
TRIALS_S = 2.0
"""No further place is tried after so long: a slow reference is known less well, not for longer."""
SEEDS = 301, 302
"""Public: nothing is judged on these inputs."""


class Physics:
    """The limits of one device."""

    def __init__(self, name: str, l2_bytes: int) -> None:
        """A device by the name its driver gives, and the size of its L2 cache."""
        self._name, self._l2_bytes = name, l2_bytes
        self._peaks: Peaks | None = peaks_of(name)

    @classmethod
    def of(cls, device: torch.device) -> Physics:
        """Those of a device of this machine; of a CPU, whose memory's peak nobody tells, none."""
        if device.type != "cuda":
            return cls("cpu", 0)
        facts = torch.cuda.get_device_properties(device)
        return cls(facts.name, facts.L2_cache_size)

    @property
    def why_not(self) -> str:
        """Why nothing is refused for its speed here; empty where something may be."""
        return "" if self._peaks else f"no data sheet of a {self._name!r} is known"

    def work(self, truth: Truth, loaded: LoadedTask) -> Work | None:
        """What a call of the task must do; None where that has no use here."""
        if self._peaks is None:
            return None
        try:
            return work_of(truth, loaded, self._l2_bytes)
        except torch.OutOfMemoryError:
            return None  # no room for two inputs and three answers beside the model
        finally:
            give_back(truth.device)

    def bounds_copies(self, work: Work | None) -> bool:
        """Whether who saves copies of the task's buffers would be below the floor."""
        return bounds_copies(work, self._l2_bytes)

    def judged(self, timing: Timing, work: Work | None, tier: Tier) -> Timing:
        """The timing with its limits. Raises Verdict where the candidate was below its floor."""
        if work is None or self._peaks is None:
            return timing
        found = limits(work, self._peaks, self._l2_bytes, tier)
        if impossible(timing, found.floor_ms):
            raise Verdict(
                EvalStatus.REJECTED,
                f"faster than physics allows: {timing.candidate_ms:.3g} ms, and moving its inputs "
                f"and outputs takes a {self._name} {found.floor_ms:.3g} ms at "
                f"{self._peaks.memory_gb_s:g} GB/s",
            )
        return replace(timing, floor_ms=found.floor_ms, roofline_ms=found.roofline_ms)


def work_of(truth: Truth, loaded: LoadedTask, l2_bytes: int) -> Work:
    """Bytes and operations of one call of the reference.

    Args:
        truth: of the task; its model is built again if it was let go.
        loaded: the task.
        l2_bytes: inputs of no more than this are not looked at: they may all lie in the cache.
            Nor are those of a model whose calls leave something behind.
    """
    call = _Reference(truth, loaded)
    size = sum(slot.size_bytes for slot in truth.frame.input_slots)
    flops = _flops(call, truth.pack_fresh(SEEDS[0], 1)[0].to(truth.device))
    part = _part_that_matters(call, truth) if size > l2_bytes and not truth.resets else 0.0
    return Work(
        input_bytes=part * size,
        output_bytes=sum(slot.size_bytes for slot in truth.frame.output_slots),
        flops=flops,
    )


def _flops(call: Callable[[torch.Tensor], object], packed: torch.Tensor) -> int:
    """Of the products, convolutions and attentions of a call; 0 where they can't be counted."""
    counter = FlopCounterMode(display=False)
    try:
        with counter:
            call(packed)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # torch's counter knows not every shape (attention with grouped heads)
        return 0
    return counter.get_total_flops()


class _Reference:
    """The reference called on packed bytes, which an admitted task's forward leaves alone."""

    def __init__(self, truth: Truth, loaded: LoadedTask) -> None:
        self._truth, self._loaded = truth, loaded
        self._model = truth.model

    def __call__(self, packed: torch.Tensor) -> list[torch.Tensor]:
        frame = self._truth.frame
        leaves = views(frame.input_slots, packed)
        arguments = unflatten(frame.input_tree, leaves, self._loaded.namespace)
        with torch.inference_mode():
            answer = self._model(*arguments)
        return [leaf.clone() for leaf in tree_leaves(answer) if torch.is_tensor(leaf)]


def _part_that_matters(call: _Reference, truth: Truth) -> float:
    """The part of the input bytes on which the answer depends, at least; 0 where none is sure."""
    one, other = (truth.pack_fresh(seed, 1)[0].to(truth.device) for seed in SEEDS)
    before = call(one)
    if not before or not _same(before, call(one)):
        return 0.0  # a reference that does not repeat itself bit by bit tells nothing
    draw = random.Random(SEEDS[0])
    hits = trials = 0
    end = time.monotonic() + TRIALS_S
    places = -(-buffer_bytes(truth.frame.input_slots) // SECTOR_BYTES)
    while trials < TRIALS and time.monotonic() < end:
        at = SECTOR_BYTES * draw.randrange(places)
        place = slice(at, at + SECTOR_BYTES)
        kept = one[place].clone()
        one[place] = other[place]
        hits += not _same(before, call(one))
        one[place] = kept
        trials += 1
    return sure_part(hits, trials)


def _same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))

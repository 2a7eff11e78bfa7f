"""From fresh weights to those that a task is judged with, a step after another.

Each step takes from a fresh model something that hides mistakes: constants, forgetfulness, signs,
statistics that nobody measured, units that never turn, attention that chooses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from pike_hpc.evaluate.judge_balance import balance_units
from pike_hpc.evaluate.judge_calm import settle_norms
from pike_hpc.evaluate.judge_sharpen import sharpen_scores
from pike_hpc.evaluate.judge_turned import turn_constants
from pike_hpc.evaluate.judge_weights import calibrate, lengthen_memory, spread_constants

CALIBRATION_SEEDS = (101, 102)
"""Inputs that BatchNorm is calibrated with, and units are balanced with those that follow; public,
since a task's digest fixes the procedure."""


def with_judging_weights(
    model: nn.Module,
    seed: int,
    arguments: Callable[[int], Sequence[Any]],
    again: Callable[[nn.Module], nn.Module] | None,
) -> tuple[nn.Module, int]:
    """A fresh model with the weights that it is judged with.

    Args:
        model: is changed.
        seed: of the changes.
        arguments: of a call, by the seed of its inputs, made anew: a forward may write them.
        again: the same weights in a model that nobody called, since what one made of others is old;
            None for a model that is too large to be made twice.

    Returns:
        It or another one, and how many BatchNorms were calibrated.
    """

    def batches() -> list[Sequence[Any]]:
        return [arguments(s) for s in CALIBRATION_SEEDS]

    def calibrated(changed: nn.Module) -> nn.Module:
        other = again(changed) if again else changed
        calibrate(other, batches())
        return other

    scales = spread_constants(model, seed)
    lengthen_memory(model)
    if scales and again:
        called = model
        generator = torch.Generator().manual_seed(seed)
        turn_constants(scales, lambda: called(*arguments(CALIBRATION_SEEDS[0])), generator)
        model = again(called)
    count = settle_norms(model, batches)
    plain = model
    if balance_units(plain, lambda n: plain(*arguments(CALIBRATION_SEEDS[0] + n))):
        model = calibrated(plain)
    even = model
    if sharpen_scores(even, lambda: even(*arguments(CALIBRATION_SEEDS[0]))):
        model = calibrated(even)
    return model, count

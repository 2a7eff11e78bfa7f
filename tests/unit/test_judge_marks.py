"""What an answer that is too far off is told: wrong, or that its arithmetic tells nothing here."""

import math
import re

import pytest

torch = pytest.importorskip("torch")

from builders.marks import drawn, mark, marker_of  # noqa: E402 - torch

from pike_hpc.evaluate.correctness import (  # noqa: E402
    LeafError,
    LeafScale,
    grain_of,
    signal_of,
)
from pike_hpc.evaluate.judge_agreement import Tally  # noqa: E402
from pike_hpc.evaluate.judge_marks import Verdict, too_coarse  # noqa: E402
from pike_hpc.evaluate.judge_off import Off  # noqa: E402
from pike_hpc.evaluate.judge_truth import WeightsBy  # noqa: E402
from pike_hpc.evaluate.pieces import LOCAL_ELEMENTS  # noqa: E402
from pike_hpc.records import EvalStatus, Tier  # noqa: E402

pytestmark = pytest.mark.torch

COUNT, LIMITS = 1 << 16, {Tier.FP32: 1e-5, Tier.TF32: 0.01, Tier.HALF: 0.02}


def marked(off, *, limits=LIMITS, stretch=0.0, **known):
    """The mark of answers that are off by so much of the signal, and one stretch by more."""
    generator = torch.Generator().manual_seed(1)
    truths = [torch.randn(COUNT, generator=generator) for _ in range(3)]
    signal = 2**0.5
    answers = [t + off * signal * torch.randn(COUNT, generator=generator) for t in truths]
    for answer in answers:
        answer[LOCAL_ELEMENTS : 2 * LOCAL_ELEMENTS] += stretch * signal
    scale = LeafScale(signal=signal, limits=limits)
    return mark(truths, answers, scale, **known)


def told(off, **known):
    """Status and message for such answers; None where they pass."""
    refusal = marked(off, **known).refusal
    return refusal and (refusal.status, refusal.message)


def test_who_is_within_a_tier_passes():
    assert told(0.005, half=0.05) is None


@pytest.mark.parametrize("known", [{"shipped": 0.05}, {"half": 0.05}])
def test_who_is_as_coarse_as_the_reference_in_that_arithmetic_is_not_called_wrong(known):
    status, message = told(0.06, **known)
    assert status is EvalStatus.JUDGE_ERROR
    assert "tells nothing" in message


def test_half_excuses_no_one_where_it_is_not_offered_or_who_is_far_off():
    for found in (
        told(0.06, half=0.05, asked=(Tier.FP32, Tier.TF32)),
        told(0.06, half=0.01),
        told(0.06, half=0.05, limits={Tier.FP32: 1e-5, Tier.TF32: 0.01}),
        told(0.4, half=0.9),
        told(0.06),
    ):
        assert found[0] is EvalStatus.WRONG_RESULT


@pytest.mark.parametrize(
    ("known", "between"),
    [
        ({}, "is over"),
        ({"half": 0.01}, "can be judged"),
        ({"asked": (Tier.FP32,), "limits": {Tier.FP32: 0.0199, Tier.HALF: 1.0}}, "asked for"),
    ],
)
def test_no_error_is_said_to_be_over_what_it_is_printed_as(known, between):
    for off in (0.02001, 0.02003, 0.0202):
        message = told(off, **known)[1]
        assert between in message
        numbers = [float(n) for n in re.findall(r"\d\.\d+e-\d+", message)]
        assert numbers[0] > numbers[-1], message


def test_who_may_be_wrong_by_half_precision_alone_is_told_that_it_is_not_offered():
    without = {Tier.FP32: 1e-5, Tier.TF32: 0.01}
    assert "half is not offered" in told(0.06, half=0.05, limits=without)[1]
    for found in (
        told(0.4, half=0.05, limits=without),
        told(0.06, half=0.05, limits=without, asked=(Tier.FP32, Tier.TF32)),
        told(0.06, half=0.01),
    ):
        assert "not offered" not in found[1]


def test_who_is_wrong_with_weights_from_a_seed_is_told_how_to_take_others():
    assert "prepare(state_dict)" in told(1.0, by=WeightsBy.SEED)[1]
    assert "prepare(state_dict)" not in told(1.0)[1]
    assert "prepare(state_dict)" not in told(0.06, half=0.05, by=WeightsBy.SEED)[1]


def test_who_is_wrong_where_calls_leave_something_is_told_when_that_is_put_back():
    assert "constructor" in told(1.0, resets=True)[1]
    assert "constructor" not in told(1.0)[1]


def test_who_is_too_coarse_in_one_stretch_alone_earns_the_next_tier():
    assert marked(1e-7).tier is Tier.FP32
    found = marked(1e-7, stretch=2e-4)
    assert found.correctness.relative_error < LIMITS[Tier.FP32]
    assert (found.tier, found.refusal) == (Tier.TF32, None)
    assert found.correctness.limit == LIMITS[Tier.TF32]


def test_and_is_refused_where_that_was_not_asked_for_or_no_tier_is_so_coarse():
    status, message = told(1e-7, stretch=2e-4, asked=(Tier.FP32,))
    assert status is EvalStatus.WRONG_RESULT
    assert "a part of its output" in message
    assert "tier fp32" in message
    without = {Tier.FP32: 1e-5, Tier.HALF: 0.02}
    for asked in ((Tier.FP32, Tier.TF32), (Tier.FP32,)):
        status, message = told(1e-7, stretch=2e-4, asked=asked, limits=without)
        assert status is EvalStatus.WRONG_RESULT
    status, message = told(1e-7, stretch=0.25)
    assert status is EvalStatus.WRONG_RESULT
    assert "a part of its output" in message


def test_a_stretch_is_held_to_the_cap_also_where_half_reaches_beyond_it():
    further = {**LIMITS, Tier.HALF: 0.05}
    assert told(0.04, limits=further) is None
    assert told(1e-7, stretch=0.19, limits=further) is None
    assert "a part of its output" in told(1e-7, stretch=0.25, limits=further)[1]


@pytest.mark.parametrize("end", [0.02, 0.05])
def test_a_stretch_that_is_dead_does_not_pass_while_timed(end):
    marker = marker_of(drawn(3, COUNT), LeafScale(signal=2**0.5, limits={Tier.HALF: end}))
    dead = 1 / 2**0.5  # of the signal, where answers have no mean
    assert marker.tolerance(Tier.HALF).local[0] < dead
    found = [[LeafError(error=0.01, local=dead, local_half=dead)]]
    assert marker.broken_in_checks(found, Tier.HALF).startswith("a part of it is off by 7.1e-01")
    found = [[LeafError(error=1.9 * end, local=0.3, local_half=0.3)]]
    assert not marker.broken_in_checks(found, Tier.HALF)


def test_a_second_call_may_be_off_by_what_a_state_makes_of_the_first_one_s_error():
    truths = drawn(3, COUNT)
    scale = LeafScale(signal=1.0, limits={Tier.FP32: 1e-5, Tier.HALF: 1e-2})
    once, twice, far = (
        marker_of(truths, scale, shipped=1e-6, second=second).tolerance(Tier.HALF)
        for second in (0.0, 2e-6, 1e-3)
    )
    assert once.limits[0] == pytest.approx(2 * (1e-2 + 1e-6))
    assert twice.limits[0] == pytest.approx(2 * (2e-2 + 2e-6))
    assert twice.usual[0] == pytest.approx(1.25 * 2e-2 + 4e-6)
    assert far.limits[0] == pytest.approx(2 * (4e-2 + 1e-3))


@pytest.mark.parametrize("chooses", [True, False])
def test_rows_may_be_off_while_timed_where_the_reference_chooses(chooses):
    scale = LeafScale(signal=2**0.5, limits=LIMITS)
    assert (
        marker_of(drawn(3, COUNT), scale, chooses=chooses).tolerance(Tier.FP32).chooses is chooses
    )


def test_timed_calls_are_too_coarse_where_many_are_or_one_is_the_next_tier_s():
    furthest = Off(error=3e-5, limit=1.3e-5)
    assert not too_coarse(Tally(calls=100, coarse=14, furthest=furthest))
    assert too_coarse(Tally(calls=100, coarse=15, furthest=furthest)) == (
        "15 of 100 calls are further from the reference beside them than most may be, and 14% may; "
        "the worst is off by 3.0e-05 of the signal, over 1.3e-05"
    )
    assert too_coarse(Tally(calls=100_000, looser=1)).startswith("1 of 100000 calls")


def test_who_is_too_coarse_for_a_tier_and_has_no_other_is_told_why():
    marker = marker_of(drawn(3, COUNT), LeafScale(signal=2**0.5, limits=LIMITS))
    why = marker.broken_in_checks([[LeafError(error=0.05)]], Tier.HALF)
    assert (
        why
        == "off by 5.0e-02 of the signal, over 4.0e-02, in a call held against float64 afterwards"
    )
    with pytest.raises(Verdict, match="coarser while it was timed than tier half allows: off by 5"):
        marker.loosened(Tier.HALF, None, why)


def fading(size, last):
    """Three answers of such a size whose channels fade from 1 to `last`, and their scale."""
    generator = torch.Generator().manual_seed(2)
    gain = size * torch.logspace(0, math.log10(last), 64, dtype=torch.float64)
    drawn = [torch.randn(4096, 64, generator=generator) for _ in range(6)]
    truths = [gain * one.double() for one in drawn[:3]]
    shipped = [t * (1 + 1e-7 * noise) for t, noise in zip(truths, drawn[3:], strict=True)]
    signal = signal_of(truths)
    grain = grain_of(truths, shipped, signal, 1e-7)
    return truths, LeafScale(signal=signal, limits=LIMITS, grain=grain)


def without_last(truths):
    answers = [t.clone() for t in truths]
    for answer in answers:
        answer[:, -1] = 0.0
    return answers


def test_what_float16_makes_zero_may_be_zero_at_tier_half_alone():
    truths, scale = fading(1.0, 3e-8)
    found = mark(truths, without_last(truths), scale)
    assert (found.tier, found.refusal) == (Tier.HALF, None)
    assert mark(truths, without_last(truths), scale, asked=(Tier.FP32, Tier.TF32)).refusal
    marker = marker_of(truths, scale)
    pairs = [[t] for t in truths], [[a] for a in without_last(truths)]
    errors = marker.leaf_errors(*reversed(pairs))
    assert [not marker.broken_in_checks(errors, tier) for tier in Tier] == [False, False, True]
    timed = [marker.tolerance(tier).scales[0].grain.by_index[-1].min() for tier in Tier]
    assert timed[0] == timed[1] < timed[2]


@pytest.mark.parametrize(("size", "last"), [(1.0, 1e-6), (2e-7, 3e-2)])
def test_but_not_what_it_holds_nor_in_outputs_that_it_is_too_coarse_for(size, last):
    truths, scale = fading(size, last)
    assert "a part of its output" in mark(truths, without_last(truths), scale).refusal.message

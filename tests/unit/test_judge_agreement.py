"""Timed answers beside the reference runner's: the quick look never says more than the full one."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.correctness import LeafScale, grain_of  # noqa: E402 - torch
from pike_hpc.evaluate.judge_agreement import (  # noqa: E402 - torch
    Agreement,
    Quick,
    Tolerance,
    off_by,
)
from pike_hpc.evaluate.judge_memory import views  # noqa: E402 - torch
from pike_hpc.evaluate.layout import ALIGNMENT, buffer_bytes, lay_out  # noqa: E402 - torch
from pike_hpc.records import Tier  # noqa: E402 - torch

pytestmark = pytest.mark.torch

SHAPE = (40, 96)
PLAIN = LeafScale(signal=1.0, limits={Tier.FP32: 1e-3})


def agreement(slots, scale=PLAIN, *, pike=False):
    count = len(slots)
    tolerance = Tolerance(scales=(scale,) * count, limits=(1e-3,) * count, local=(1e-2,) * count,
                          usual=(5e-4,) * count, pike=pike)  # fmt: skip
    return Agreement(tolerance, slots)


def rows(slots, calls):
    """Room for so many answers, and its leaves by call."""
    size = -(-buffer_bytes(slots) // ALIGNMENT) * ALIGNMENT
    raw = torch.zeros(calls, size, dtype=torch.uint8)
    return raw, [views(slots, row) for row in raw]


def grown(seed, growth):
    """Answers whose last dimension grows by orders of magnitude."""
    generator = torch.Generator().manual_seed(seed)
    along = torch.logspace(-growth, 0, SHAPE[1], dtype=torch.float64)
    return [torch.randn(SHAPE, generator=generator, dtype=torch.float64) * along for _ in range(3)]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 1000),
    growth=st.floats(0, 6),
    noise=st.sampled_from([0.0, 1e-7, 1e-3]),
    bound=st.floats(1e-6, 1e-1),
    local=st.floats(1e-6, 1.0),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_whatever_a_quick_look_is_sure_of_agrees_in_full(seed, growth, noise, bound, local, dtype):
    truths = grown(seed, growth)
    shipped = [t * (1 + noise * torch.randn_like(t)) for t in truths]
    signal = float((truths[0] - truths[1]).square().mean().sqrt())
    grain = grain_of(truths, shipped, signal, noise / 2)
    scale = LeafScale(signal=signal, limits={Tier.FP32: bound}, grain=grain)
    quick = Quick(scale, bound, local)
    along = torch.logspace(-growth, 0, SHAPE[1])
    for pattern in (torch.ones(SHAPE), torch.randn(SHAPE), along * torch.randn(SHAPE)):
        for factor in (0.3, 0.9, 1.1, 3.0):
            size = factor * signal * min(bound, local)
            off = (size * pattern).to(dtype)
            if quick.sure(off.view(1, -1)):
                assert off_by(truths[0] + off, truths[0], scale, local) <= bound


def test_a_quick_look_settles_what_is_well_within():
    """Where the answer grows along a dimension, too: there the largest difference alone says no."""
    truths = grown(1, 4)
    shipped = [t * (1 + 1e-6 * torch.randn_like(t)) for t in truths]
    signal = float((truths[0] - truths[1]).square().mean().sqrt())
    for width in (SHAPE[1], 7):
        t, s = ([x[:, :width] for x in xs] for xs in (truths, shipped))
        scale = LeafScale(signal=signal, limits={}, grain=grain_of(t, s, signal, 1e-6))
        off = (1e-6 * t[0] * torch.randn_like(t[0])).float().reshape(1, -1)
        assert Quick(scale, 1e-3, 1e-2).sure(off)
        assert not Quick(scale, 1e-3, 1e-2).sure(off * math.nan)
        assert not Quick(scale, 1e-3, 1e-2).sure(off + 1e-2 * signal)


def test_without_a_grain_the_largest_difference_counts():
    quick, off = Quick(PLAIN, 1e-3, 1e-2), torch.zeros(2, 10)
    assert quick.sure(off)
    off[1, 3] = 0.97e-3
    assert quick.sure(off)
    off[1, 3] = 0.99e-3
    assert not quick.sure(off)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "complex64"])
@pytest.mark.parametrize("calls", [1, 3])
def test_one_wrong_call_of_a_window_is_seen(dtype, calls):
    slots = lay_out([("y", dtype, (2, 100)), ("z", "float32", ())])
    answers, mine = rows(slots, calls)
    references, its = rows(slots, calls)
    for leaves in (*mine, *its):
        leaves[0].fill_(0.5)
    judge = agreement(slots)
    assert judge.holds(answers, references)
    mine[-1][1].fill_(1e-4)
    assert judge.holds(answers, references), "within a thousandth of the signal"
    mine[-1][0].fill_(0.6)
    assert not judge.holds(answers, references)
    mine[-1][0].fill_(math.nan)
    assert not judge.holds(answers, references)


def test_few_whole_numbers_may_differ_and_a_float_beside_them_counts():
    slots = lay_out([("i", "int64", (5000,)), ("y", "float32", (10,))])
    answers, mine = rows(slots, 2)
    references, _ = rows(slots, 2)
    judge = agreement(slots)
    mine[0][0][::1000] = 7
    assert judge.holds(answers, references)
    mine[0][0][1] = 7
    assert not judge.holds(answers, references)
    mine[0][0].fill_(0)
    mine[1][1].fill_(1.0)
    assert not judge.holds(answers, references)


@pytest.mark.parametrize(("moving", "holds"), [(40, True), (20, False)])
def test_one_near_tie_of_many_moving_numbers_is_none(moving, holds):
    slots = lay_out([("i", "bool", (1000,))])
    answers, mine = rows(slots, 1)
    references, _ = rows(slots, 1)
    scale = LeafScale(signal=1.0, limits={}, moves=moving / 1000)
    judge = agreement(slots, scale)
    mine[0][0][17] = mine[0][0][18] = True
    assert judge.holds(answers, references) is holds
    mine[0][0][500] = True
    assert not judge.holds(answers, references)


def test_that_holds_for_any_number_of_them():
    for count in range(32, 1000):
        answer, reference = torch.zeros(2, count, dtype=torch.long)
        answer[count // 2 : count // 2 + 2] = 1
        assert off_by(answer, reference, PLAIN, 1.0) == 0.0, count
        answer[0] = 1
        assert off_by(answer, reference, PLAIN, 1.0) == math.inf, count


@pytest.mark.parametrize("moving", [1.0, 0.04])
def test_near_ties_at_one_place_in_every_call_are_none(moving):
    slots = lay_out([("i", "int64", (2000,))])
    scale = LeafScale(signal=1.0, limits={}, moves=moving)
    for places, holds in (((1999,) * 9, False), (range(0, 1800, 200), True), ((5, 6), True)):
        judge = agreement(slots, scale)
        held = []
        for place in places:
            answers, mine = rows(slots, 1)
            mine[0][0][place] = 7
            held.append(judge.holds(answers, rows(slots, 1)[0]))
        assert all(held) is holds
        assert held[:2] == [True, True]


def test_nor_are_those_that_take_turns_among_few_places():
    slots = lay_out([("i", "int64", (133,))])
    judge = agreement(slots)
    held = []
    for call in range(100):
        answers, mine = rows(slots, 1)
        mine[0][0][call % 133] = 7
        held.append(judge.holds(answers, rows(slots, 1)[0]))
    assert not all(held)


def test_a_near_tie_in_a_call_of_fifty_is_one():
    slots = lay_out([("i", "int64", (133,))])
    judge = agreement(slots)
    for call in range(1000):
        answers, mine = rows(slots, 1)
        mine[0][0][132] = 7 * (call % 50 == 0)
        assert judge.holds(answers, rows(slots, 1)[0])


def test_legacy_lets_a_hundredth_of_an_output_miss_pike_s_rule():
    slots = lay_out([("y", "float32", (1000,))])
    answers, mine = rows(slots, 1)
    references, _ = rows(slots, 1)
    judge = agreement(slots, pike=True)
    mine[0][0][:9] = 1.0
    assert judge.holds(answers, references)
    mine[0][0][:11] = 1.0
    assert not judge.holds(answers, references)


def test_calls_that_agree_and_are_further_off_than_most_may_be_are_counted():
    slots = lay_out([("y", "float32", (2, 100)), ("z", "float32", ())])
    answers, mine = rows(slots, 2)
    references, _ = rows(slots, 2)
    judge = agreement(slots)
    mine[1][0].fill_(4e-4)
    assert judge.holds(answers, references)
    assert judge.take() == (2, 0)
    mine[1][0].fill_(6e-4)
    mine[1][1].fill_(6e-4)
    assert judge.holds(answers, references)
    assert judge.take() == (2, 1), "whichever output it is"
    mine[0][0].fill_(6e-4)
    assert judge.holds(answers, references)
    assert judge.holds(references, references)
    assert judge.take() == (4, 2)
    assert judge.take() == (0, 0)

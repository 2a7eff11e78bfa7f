"""Timed answers beside the reference runner's: the quick look never says more than the full one."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.correctness import LeafScale, grain_of  # noqa: E402 - torch
from pike_hpc.evaluate.judge_agreement import (  # noqa: E402 - torch
    Agreement,
    Miss,
    Quick,
    Seen,
    Tolerance,
    off_by,
)
from pike_hpc.evaluate.judge_memory import views  # noqa: E402 - torch
from pike_hpc.evaluate.layout import ALIGNMENT, buffer_bytes, lay_out  # noqa: E402 - torch
from pike_hpc.records import Tier  # noqa: E402 - torch

pytestmark = pytest.mark.torch

SHAPE = (40, 96)
PLAIN = LeafScale(signal=1.0, limits={Tier.FP32: 1e-3})


def agreement(slots, scale=PLAIN, **known):
    count = len(slots)
    tolerance = Tolerance(scales=(scale,) * count, limits=(1e-3,) * count, local=(1e-2,) * count,
                          usual=(5e-4,) * count, **{"pike": False, **known})  # fmt: skip
    return Agreement(tolerance, slots)


def agree(judge, answers, references):
    return isinstance(judge.look(answers, references), Seen)


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
                assert off_by(truths[0] + off, truths[0], scale, bound, local).fits


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
    assert agree(judge, answers, references)
    mine[-1][1].fill_(1e-4)
    assert agree(judge, answers, references), "within a thousandth of the signal"
    mine[-1][0].fill_(0.6)
    assert not agree(judge, answers, references)
    mine[-1][0].fill_(math.nan)
    assert not agree(judge, answers, references)


def test_few_whole_numbers_may_differ_and_a_float_beside_them_counts():
    slots = lay_out([("i", "int64", (5000,)), ("y", "float32", (10,))])
    answers, mine = rows(slots, 2)
    references, _ = rows(slots, 2)
    judge = agreement(slots)
    mine[0][0][::1000] = 7
    assert agree(judge, answers, references)
    mine[0][0][500::1000] = 7
    assert not agree(judge, answers, references)
    mine[0][0].fill_(0)
    mine[1][1].fill_(1.0)
    assert not agree(judge, answers, references)


@pytest.mark.parametrize(("moving", "holds"), [(40, True), (1, True), (0, False)])
def test_up_to_eight_differ_where_any_move(moving, holds):
    slots = lay_out([("i", "bool", (1000,))])
    answers, mine = rows(slots, 1)
    references, _ = rows(slots, 1)
    scale = LeafScale(signal=1.0, limits={}, moves=moving / 1000)
    judge = agreement(slots, scale)
    mine[0][0][:800:100] = True
    assert agree(judge, answers, references) is holds
    mine[0][0][990] = True
    assert not agree(judge, answers, references)


def test_that_holds_for_any_number_of_them():
    for count in range(5, 1000):
        answer, reference = torch.zeros(2, count, dtype=torch.long)
        answer[-1:] = 1
        assert off_by(answer, reference, PLAIN, 1.0, 1.0).error == 0.0, count
        answer[:9] = 1
        assert not off_by(answer, reference, PLAIN, 100.0, 1.0).fits, count


def held(slots, calls, *, scale=PLAIN, begun=True):
    """Whether each of the calls holds, whose whole numbers differ at such (leaf, place)."""
    judge = agreement(slots, scale)
    found = []
    for places in calls:
        answers, mine = rows(slots, 1)
        for leaf, place in places:
            mine[0][leaf].view(-1)[place] = 7
        found.append(agree(judge, answers, rows(slots, 1)[0]))
        if not begun:
            judge.begin()
    return found


def at(*places):
    """One difference in each call, at such a place of the first output; none where it is None."""
    return [[] if place is None else [(0, place)] for place in places]


LONG, FLAGS = lay_out([("i", "int64", (2000,))]), lay_out([("i", "int64", (133,))])
FORTIETH = LeafScale(signal=1.0, limits={}, moves=1 / 40)


@pytest.mark.parametrize("moving", [1.0, 0.04])
def test_near_ties_at_one_place_in_every_call_are_none(moving):
    scale = LeafScale(signal=1.0, limits={}, moves=moving)
    assert held(LONG, at(1999, 1999, 1999), scale=scale) == [True, True, False]
    assert held(LONG, at(5, *[None] * 20, 6, 7), scale=scale)[-1] is False, "neighbours are one"


def test_of_fifty_calls_three_may_have_one_at_the_same_place():
    assert held(FLAGS, at(9, *[None] * 46, 9, 9))[-1] is False
    assert all(held(FLAGS, at(9, *[None] * 47, 9, 9)))


def test_whatever_was_rehearsed_is_forgotten():
    """One input again and again: a near tie in it is one each time."""
    assert all(held(LONG, at(*[17] * 9), begun=False))
    judge = agreement(FLAGS)
    answers, mine = rows(FLAGS, 1)
    references, _ = rows(FLAGS, 1)
    assert all(agree(judge, references, references) for _ in range(100))
    judge.begin()
    mine[0][0][17] = 7
    assert [agree(judge, answers, references) for _ in range(3)] == [True, True, False]


def turns(period, calls):
    """One difference in one of so many calls, each time far from the last."""
    return at(*[i // period * 65 % 2000 if i % period == 0 else None for i in range(calls)])


def test_nor_are_those_that_take_turns_among_places_too_often():
    assert all(held(LONG, turns(10, 400), scale=FORTIETH))
    assert not all(held(LONG, turns(8, 400), scale=FORTIETH))
    assert all(held(LONG, turns(4, 100))), "where more numbers move, more may"
    assert not all(held(LONG, turns(2, 100)))


def test_nor_those_that_take_turns_among_outputs():
    slots = lay_out([(name, "int64", (32,)) for name in "abcde"])
    assert held(slots, [[(leaf, 1)] for leaf in range(5)]) == [True, True, False, False, False]


def test_nor_at_one_place_where_another_output_has_one_as_well():
    slots = lay_out([("i", "int64", (9000,)), ("j", "int64", (9000,))])
    assert all(held(slots, [[(0, 1)], [(0, 1)], [(0, 900), (1, 1)]]))
    assert held(slots, [[(0, 1)], [(0, 1)], [(0, 1), (1, 1)]])[-1] is False


def test_floating_numbers_that_move_are_no_near_ties():
    slots = lay_out([("flags", "bool", (640,)), ("y", "float32", (16, 2048))])
    calls = [[(0, 100 * i)] for i in range(3)]
    assert held(slots, calls) == [True, True, False]


def test_many_numbers_have_near_ties_in_every_call():
    """As 16 rows of 2,048 scores in order have."""
    slots = lay_out([("i", "int64", (16, 2048))])
    assert all(held(slots, at(*[(call * 977) % 32768 for call in range(300)])))


def test_a_near_tie_in_a_call_of_fifty_is_one():
    assert all(held(FLAGS, at(*[132 if call % 50 == 0 else None for call in range(1000)])))


@pytest.mark.parametrize("pike", [False, True])
def test_whole_numbers_are_the_same_in_all_calls_of_a_window_or_not(pike):
    slots = lay_out([("y", "float32", (100,)), ("i", "int64", (133,)), ("m", "bool", (300,))])
    judge = agreement(slots, pike=pike)
    references, _ = rows(slots, 3)
    for leaf, same in ((0, True), (1, False), (2, False)):
        answers, mine = rows(slots, 3)
        assert judge.look(answers, references).equal
        mine[2][leaf][1] = 1e-5 if leaf == 0 else 1
        assert judge.look(answers, references).equal is (same or pike)


def test_legacy_lets_a_hundredth_of_an_output_miss_pike_s_rule():
    slots = lay_out([("y", "float32", (1000,))])
    answers, mine = rows(slots, 1)
    references, _ = rows(slots, 1)
    judge = agreement(slots, pike=True)
    mine[0][0][:9] = 1.0
    assert agree(judge, answers, references)
    mine[0][0][:11] = 1.0
    assert not agree(judge, answers, references)


def test_calls_that_agree_and_are_further_off_than_most_may_be_are_counted():
    slots = lay_out([("y", "float32", (2, 100)), ("z", "float32", ())])
    answers, mine = rows(slots, 2)
    references, _ = rows(slots, 2)
    judge = agreement(slots)
    mine[1][0].fill_(4e-4)
    assert judge.look(answers, references).tally.coarse == 0
    mine[1][0].fill_(6e-4)
    mine[1][1].fill_(6e-4)
    assert judge.look(answers, references).tally.coarse == 1, "whichever output it is"
    mine[0][0].fill_(6e-4)
    assert judge.look(answers, references).tally.coarse == 2
    assert judge.look(references, references).tally.coarse == 0


def test_what_the_next_tier_alone_allows_costs_the_tier_and_no_more():
    """A number that is rounded falls the other way now and then."""
    slots = lay_out([("y", "float32", (64, 4))])
    near = Tolerance(scales=(PLAIN,), limits=(1e-4,), local=(1e-3,), usual=(5e-5,), pike=False)
    far = Tolerance(scales=(PLAIN,), limits=(1e-2,), local=(1e-1,), usual=(5e-3,), pike=False)
    answers, leaves = rows(slots, 3)
    references = answers.clone()
    leaves[1][0][:] = 1e-3
    assert not agree(Agreement(near, slots), answers, references)
    seen = Agreement(replace(near, looser=far), slots).look(answers, references)
    assert (seen.tally.coarse, seen.tally.looser) == (0, 1)
    leaves[2][0][:] = 7e-5
    seen = Agreement(replace(near, looser=far), slots).look(answers, references)
    assert (seen.tally.coarse, seen.tally.looser) == (1, 1)
    leaves[2][0][:] = 0.1
    missed = Agreement(replace(near, looser=far), slots).look(answers, references)
    assert missed == Miss(2, "off by 1.0e-01 of the signal, over 1.0e-02"), "the looser one's"


def test_an_answer_that_is_larger_than_any_in_the_exam_is_measured_by_its_own_size():
    right = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 500
    answer = right * (1 + 1e-4)
    small = replace(PLAIN, signal=1.0, size=1.0)
    assert off_by(answer, right, PLAIN, 1.0, 1.0).error > 0.04
    assert off_by(answer, right, small, 1.0, 1.0).error == pytest.approx(1e-4, rel=0.1)
    usual = off_by(answer / 500, right / 500, small, 1.0, 1.0)
    assert usual.error == pytest.approx(1e-4, rel=0.1)


def fill(rows, leaf, value):
    rows[leaf].view(-1)[:] = value


SAID = {
    "whole": (1, 0.02, "output 2 of 3: off by 2.0e-02 of the signal, over 1.0e-02"),
    "close to its limit": (1, 0.010001, "output 2 of 3: off by 1.0001e-02 of the signal, over 1.0"),
    "not finite": (1, math.nan, "output 2 of 3: it holds values that are not finite"),
    "numbers": (0, 7, "output 1 of 3: 999 whole numbers differ, and 8 may"),
    "never moves": (2, 1.0, "output 3 of 3: it is no longer what never changes with the input"),
}


@pytest.mark.parametrize("name", SAID)
def test_a_call_that_misses_says_which_one_by_how_much_and_what_it_may(name):
    slots = lay_out([("i", "int64", (999,)), ("y", "float32", (640,)), ("z", "float32", (3,))])
    scales = (PLAIN, PLAIN, replace(PLAIN, signal=0.0))
    tolerance = Tolerance(
        scales=scales, limits=(1e-2,) * 3, local=(0.1,) * 3, usual=(5e-3,) * 3, pike=False
    )
    answers, mine = rows(slots, 4)
    leaf, value, said = SAID[name]
    fill(mine[2], leaf, value)
    missed = Agreement(tolerance, slots).look(answers, rows(slots, 4)[0])
    assert missed.call == 2
    assert missed.how.startswith(said), missed.how


def test_of_several_outputs_it_says_the_one_that_is_furthest_over_what_it_may():
    slots = lay_out([(name, "float32", (640,)) for name in "yz"])
    answers, mine = rows(slots, 1)
    fill(mine[0], 0, 2e-3)
    fill(mine[0], 1, 4e-3)
    judge, references = agreement(slots), rows(slots, 1)[0]
    assert judge.look(answers, references).how.startswith("output 2 of 2: off by 4.0e-03")
    mine[0][1][:] = 0.0
    mine[0][1][:64] = 2e-2  # a third of that is the whole's
    assert judge.look(answers, references).how.startswith("output 2 of 2: off by 6.3e-03")
    slots = lay_out([("y", "float32", (64, 640))])
    answers, mine = rows(slots, 1)
    mine[0][0][0, :64] = 2e-2
    assert agreement(slots).look(answers, rows(slots, 1)[0]).how == (
        "a part of it is off by 2.0e-02 of its own size or signal, over 1.0e-02 for 64 elements"
    )


def test_whole_numbers_side_by_side_and_in_too_many_calls_are_said_to_be():
    flags = lay_out([("flags", "bool", (1000,))])
    answers, mine = rows(flags, 1)
    mine[0][0][:8] = True
    how = agreement(flags).look(answers, rows(flags, 1)[0]).how
    assert how == "8 whole numbers differ, too many of them side by side or in one column"
    judge = agreement(LONG)
    answers, mine = rows(LONG, 1)
    mine[0][0][17] = 7
    for _ in range(3):
        missed = judge.look(answers, rows(LONG, 1)[0])
    assert missed.how == "whole numbers differ at one place in 3 of 3 calls, and 2 may"


def test_legacy_says_which_part_misses_pike_s_rule():
    slots = lay_out([("y", "float32", (1000,))])
    answers, mine = rows(slots, 1)
    mine[0][0][:11] = 1.0
    how = agreement(slots, pike=True).look(answers, rows(slots, 1)[0]).how
    assert how == (
        "1.1e-02 of its elements are outside of PIKE's allclose(1e-2), and 1.0e-02 may be"
    )


def test_the_furthest_of_the_coarse_calls_is_known():
    slots = lay_out([("y", "float32", (64,))])
    answers, mine = rows(slots, 3)
    for call, value in enumerate((6e-4, 9e-4, 7e-4)):
        fill(mine[call], 0, value)
    furthest = agreement(slots).look(answers, rows(slots, 3)[0]).tally.furthest
    assert str(furthest) == "off by 9.0e-04 of the signal, over 5.0e-04"

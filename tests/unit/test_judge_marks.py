"""What an answer that is too far off is told: wrong, or that its arithmetic tells nothing here."""

import math
import re
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.correctness import (  # noqa: E402
    LeafError,
    LeafScale,
    grain_of,
    moving,
    signal_of,
)
from pike_hpc.evaluate.judge_agreement import Tally  # noqa: E402
from pike_hpc.evaluate.judge_exam import Exam  # noqa: E402
from pike_hpc.evaluate.judge_marks import Marker, Verdict, too_coarse  # noqa: E402
from pike_hpc.evaluate.judge_memory import views  # noqa: E402
from pike_hpc.evaluate.judge_off import Off  # noqa: E402
from pike_hpc.evaluate.judge_truth import WeightsBy  # noqa: E402
from pike_hpc.evaluate.layout import Slot  # noqa: E402
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


def mark(truths, answers, scale, **known):
    return marker_of(truths, scale, **known).mark([[a] for a in answers])


def marker_of(
    truths,
    scale,
    *,
    shipped=0.0,
    half=0.0,
    asked=tuple(Tier),
    inputs=(),
    make=None,
    large=False,
    cost_s=0.0,
    kind="cpu",
    by=WeightsBy.STATE,
    resets=False,
    chooses=False,
    second=0.0,
):
    """A marker; where `make` makes truths of inputs, it can be asked about others."""
    exam = Exam(
        inputs=tuple(torch.cat([bytes_of(x) for x in of(one)]) for one in inputs),
        truths=tuple([t] for t in truths),
        references=tuple([t] for t in truths),
        scales=(scale,),
        reference_errors=(shipped,),
        reference_locals=(shipped,),
        wide=None,
        half_noise=half,
        aliased=False,
        in_turn=(),
        second_errors=(second,),
        cost_s=cost_s,
    )
    shape = tuple(truths[0].shape)
    slot = Slot(name="y", dtype=dtype_of(truths[0]), shape=shape, offset=0, count=truths[0].numel())
    taken, offset = [], 0
    for x in of(inputs[0]) if inputs else ():
        slot_x = Slot(
            name="x", dtype=dtype_of(x), shape=tuple(x.shape), offset=offset, count=x.numel()
        )
        taken, offset = [*taken, slot_x], offset + slot_x.size_bytes
    truth = SimpleNamespace(
        frame=SimpleNamespace(input_slots=tuple(taken), output_slots=(slot,), chooses=chooses),
        precision="float64",
        legacy=False,
        by=by,
        resets=resets,
        large=large,
        answers_to=lambda packed: [make(*views(taken, packed))],
        device=SimpleNamespace(type=kind),
        range_seeds=(0, 1),
        forget_inputs=lambda: None,
        natively=lambda seed: [make(*of(inputs[seed]))],
    )
    return Marker(truth, exam, asked)


def of(inputs):
    """One input or several of a call."""
    return inputs if isinstance(inputs, tuple) else (inputs,)


def dtype_of(tensor):
    return str(tensor.dtype).removeprefix("torch.")


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


def bytes_of(x):
    return x.reshape(-1).view(torch.uint8)


def drawn(*shape):
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(*shape, generator=generator) for _ in range(3)]


def whole(make, inputs, answer, **known):
    """What is said of whole numbers that `make` makes of inputs, with `answer` made of them."""
    truths = [make(*of(x)) for x in inputs]
    scale = LeafScale(signal=1.0, limits={}, moves=moving(truths))
    answers = [answer(t.clone()) for t in truths]
    found = mark(truths, answers, scale, inputs=inputs, make=make, **known)
    return found.refusal and found.refusal.message


def with_zeros(at):
    def answer(t):
        t[at] = 0
        return t

    return answer


def test_near_ties_of_whole_numbers_may_fall_the_other_way():
    places = iter(((3, 5), (700, 17), (20, 900)))

    def one_off(t):
        t[next(places)] += 1
        return t

    assert whole(lambda x: (8 * x).round().int(), drawn(1024, 1024), one_off) is None


def largest(x):
    return x.topk(4, -1).indices


def near_ties(off, *shape, rows=(17,)):
    """Inputs of which the second has rows whose two largest scores are nearly alike."""
    inputs = drawn(*(shape or (40, 64)))
    for row in rows:
        inputs[1][row, 3], inputs[1][row, 50] = 5.0, 5.0 * (1 + off)
    return inputs


def swapped(*rows):
    """An answer in which the first two of some rows are the other way round, rows by call."""
    rows = iter(rows)

    def answer(t):
        here = next(rows)
        t[here, :2] = t[here, :2].flip(-1)
        return t

    return answer


@pytest.mark.parametrize("off", [1e-7, -1e-7])
def test_of_few_numbers_too_where_a_nearby_input_has_them_so(off):
    assert whole(largest, near_ties(off), swapped([], [17], [])) is None
    assert "differs" in whole(largest, near_ties(1e-3), swapped([], [17], []))


def test_a_difference_of_a_hundred_thousandth_is_none():
    """Ten times as much as an input is moved by: no order of summation makes so much."""
    for off in (1e-5, -1e-5):
        assert "differs" in whole(largest, near_ties(off), swapped([], [17], []))


def test_whole_numbers_beside_scores_stay_what_they_are():
    def offset(x, base):
        known.add(tuple(base.tolist()))
        return largest(x) + base

    known = set()
    inputs = [(x, torch.tensor([1000])) for x in near_ties(1e-7)]
    assert whole(offset, inputs, swapped([], [17], [])) is None
    assert known == {(1000,)}


def asserted(x):
    torch._assert_async((x < 6).all())
    return largest(x)


def drawn_again(x):
    torch.bernoulli(x.sigmoid())
    return largest(x)


@pytest.mark.parametrize("make", [asserted, drawn_again])
def test_what_ends_a_process_on_a_gpu_is_not_asked_about_nearby_inputs(make):
    answer = swapped([], [17], [])
    assert "differs" in whole(make, near_ties(1e-7), answer, kind="cuda")
    assert whole(make, near_ties(1e-7), swapped([], [17], [])) is None


def test_but_places_may_be_looked_up():
    def looked_up(x):
        return x.gather(-1, largest(x)).sign().long() + largest(x)

    assert whole(looked_up, near_ties(1e-7), swapped([], [17], []), kind="cuda") is None


def test_but_no_others_beside_them():
    for rows in ([[17], [17], []], [[], [18], []], [[], [], [17]]):
        assert "differs" in whole(largest, near_ties(1e-7), swapped(*rows)), rows


def test_nor_another_number_at_their_place():
    def another(t):
        if t[17, 0] in (3, 50):
            t[17, 0] = 7
        return t

    assert "differs" in whole(largest, near_ties(1e-7), another)


def test_up_to_eight_of_them():
    rows = [3, 9, 17, 30, 39]
    for most, said in ((4, None), (5, "10 of 160")):
        found = whole(largest, near_ties(1e-7, rows=rows), swapped([], rows[:most], []))
        assert said in found if said else found is None


def test_of_many_numbers_also_at_one_place_or_in_the_last():
    inputs = near_ties(1e-7, 6000, 64, rows=(17, 5999))
    inputs[0][17] = inputs[1][17]
    assert whole(largest, inputs, swapped([17], [17, 5999], [])) is None
    assert "at one place" in whole(largest, inputs, swapped([18], [18], []))
    assert "in the last" in whole(largest, inputs, swapped([5999], [], []))


def test_where_scores_lie_close_together():
    inputs = drawn(4, 2048)
    inputs[1][3, 700] = inputs[1][3].max() + 1
    inputs[1][3, 50] = inputs[1][3, 700] * (1 - 1e-7)
    order = lambda x: x.argsort(-1, descending=True)  # noqa: E731
    assert whole(order, inputs, swapped([], [3], [])) is None


def test_nor_where_most_numbers_are_others_nearby():
    def one_less(t):
        t[5] -= 1
        return t

    counts = [x.round() for x in drawn(400)]
    assert "differs" in whole(lambda x: x.floor().long(), counts, one_less)


def test_inputs_nearby_stay_within_a_range_that_ends_at_one():
    def checked(x):
        if not 0 <= x.min() <= x.max() <= 1:
            raise ValueError("no probabilities")
        return largest(x[:, 2:])

    inputs = [(x / 6).clamp(0, 1).where(torch.arange(64) > 1, 1.0) for x in near_ties(1e-7)]
    assert whole(checked, inputs, swapped([], [17], [])) is None


@pytest.mark.parametrize("beyond", [1, -1])
def test_what_grows_with_its_inputs_is_moved_both_ways(beyond):
    inputs = drawn(256, 1024)
    row = inputs[1][9]
    row.mul_(((1000 - beyond * 2e-5) / row.double().square().sum()).sqrt())

    def floors(x):
        return x.double().square().sum(-1).floor().long()

    def one_off(t):
        if t[9] in (999, 1000):
            t[9] = 1000 if t[9] == 999 else 999
        return t

    assert floors(inputs[1])[9] == (999 if beyond > 0 else 1000)
    assert whole(floors, inputs, one_off) is None


def test_a_reference_that_takes_no_such_inputs_excuses_nothing():
    inputs = near_ties(1e-7)
    known = [x.clone() for x in inputs]

    def simplex(x):
        if not any(torch.equal(x, one) for one in known):
            raise ValueError("no simplex")
        return largest(x)

    assert "differs" in whole(simplex, inputs, swapped([], [17], []))


@pytest.mark.parametrize(("cost_s", "least", "most"), [(0.01, 16, 16), (9.0, 10, 10), (1e4, 8, 8)])
def test_how_often_a_reference_is_asked(cost_s, least, most):
    asked = []

    def counted(x):
        asked.append(x)
        return largest(x)

    assert "differs" in whole(counted, near_ties(1e-3), swapped([], [17], []), cost_s=cost_s)
    assert least <= len(asked) - 3 <= most


@pytest.mark.parametrize("large", [True, False])
def test_it_is_not_asked_where_the_model_is_gone_or_nothing_can_be_moved(large):
    inputs = near_ties(1e-7) if large else [(100 * x).long() for x in near_ties(1e-3)]
    asked = []

    def counted(x):
        asked.append(x)
        return x.argmax(-1)

    def one_off(t):
        t[3] += 1
        return t

    assert "differs" in whole(counted, inputs, one_off, large=large)
    assert len(asked) == 3


WHOLE = {
    "a mask that hardly ever moves": (lambda x: x > -3.2, (1024, 1024), torch.ones_like),
    "the first rows of a one-hot": (
        lambda x: torch.nn.functional.one_hot(x.argmax(-1), 64),
        (8192, 64),
        with_zeros(slice(0, 400)),
    ),
    "the last column": (
        lambda x: (8 * x).round().int() + 100,
        (4096, 1025),
        with_zeros((slice(None), -1)),
    ),
    "a tail": (lambda x: (8 * x).round().int() + 100, (10_007,), with_zeros(slice(-7, None))),
    "a mask's tail": (lambda x: x > 0, (100_003,), with_zeros(slice(-3, None))),
    "an element now and then": (
        lambda x: x > 0,
        (4096, 64),
        with_zeros((slice(None, None, 128), -1)),
    ),
    "one element on every input": (lambda x: x.argmax(-1) + 1, (40_000, 8), with_zeros(-1)),
    "a tile": (
        lambda x: (8 * x).round().int() + 100,
        (4096, 1024),
        with_zeros((slice(64), slice(64))),
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_and_nothing_else_of_them(name):
    make, shape, answer = WHOLE[name]
    assert "integer output differs" in whole(make, drawn(*shape), answer)

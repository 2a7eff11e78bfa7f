"""Whole numbers that differ from the reference's: near ties may fall the other way, and no more."""

import pytest

torch = pytest.importorskip("torch")

from builders.marks import drawn, mark, of  # noqa: E402 - torch

from pike_hpc.evaluate.correctness import LeafScale, moving  # noqa: E402 - torch

pytestmark = pytest.mark.torch


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

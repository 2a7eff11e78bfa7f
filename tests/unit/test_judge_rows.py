"""Rows that hang on a choice: few may be off in few timed calls, if nothing else is."""

import math
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pike_hpc.evaluate.correctness import LeafScale  # noqa: E402
from pike_hpc.evaluate.judge_agreement import Agreement, Miss, Tolerance  # noqa: E402
from pike_hpc.evaluate.judge_memory import views  # noqa: E402
from pike_hpc.evaluate.judge_rows import rows_off  # noqa: E402
from pike_hpc.evaluate.layout import ALIGNMENT, buffer_bytes, lay_out  # noqa: E402
from pike_hpc.records import Tier  # noqa: E402

pytestmark = pytest.mark.torch

CODES = (256, 24)
PLAIN = LeafScale(signal=1.0, limits={Tier.FP32: 1e-3})


def tolerance(*, chooses=True, limit=1e-3, scale=PLAIN, outputs=1):
    return Tolerance(
        scales=(scale,) * outputs,
        limits=(limit,) * outputs,
        local=(10 * limit,) * outputs,
        usual=(limit / 2,) * outputs,
        pike=False,
        chooses=chooses,
    )


def room(slots):
    """For an answer and the reference's, both zeros."""
    return torch.zeros(2, -(-buffer_bytes(slots) // ALIGNMENT) * ALIGNMENT, dtype=torch.uint8)


class Watched:
    """Answers to calls of one output beside zeros, and what is made of them."""

    def __init__(self, shape=CODES, dtype="float32", **known):
        self._slots = lay_out([("y", dtype, shape)])
        self._agreement = Agreement(tolerance(**known), self._slots)

    def look(self, *places, by=1.0, rest=0.0):
        """What a call is found to be whose numbers at these places are off by so much."""
        raw = room(self._slots)
        (answer,) = views(self._slots, raw[0])
        answer.fill_(rest)
        for place in places:
            answer[place] = by
        return self._agreement.look(raw[:1], raw[1:])

    def in_doubt(self, *places, by):
        """Whether it is asked if such a call is in doubt."""
        raw, asked = room(self._slots), []
        (answer,) = views(self._slots, raw[0])
        for place in places:
            answer[place] = by
        self._agreement.look(raw[:1], raw[1:], lambda call: asked.append(call) or True)
        return bool(asked)

    def begin(self):
        self._agreement.begin()


def equal(found):
    """Whether a call counts as any other; None where it is wrong."""
    return None if isinstance(found, Miss) else found.equal


def test_a_row_that_is_another_may_be_and_its_window_is_unequal():
    assert equal(Watched().look()) is True
    assert equal(Watched().look(17)) is False
    assert equal(Watched(chooses=False).look(17)) is None, "where nothing is chosen"


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "complex64"])
def test_whatever_the_numbers_are(dtype):
    assert equal(Watched(dtype=dtype).look(17)) is False


def test_all_but_such_rows_is_within_its_limits():
    assert equal(Watched().look(17, rest=9e-4)) is False
    assert equal(Watched().look(17, rest=2e-3)) is None
    assert equal(Watched().look(*[(row, 3) for row in range(0, 256, 20)])) is None


def test_up_to_eight_rows_and_an_eighth_of_them_are_off():
    rows = range(0, 252, 28)
    assert equal(Watched().look(*rows[:8])) is False
    assert equal(Watched().look(*rows)) is None
    assert equal(Watched((16, 24)).look(1, 9)) is False
    assert equal(Watched((16, 24)).look(1, 6, 11)) is None
    assert equal(Watched((7, 24)).look(1)) is None
    assert equal(Watched(()).look(())) is None


def test_rows_side_by_side_are_no_near_ties():
    assert equal(Watched().look(slice(32, 36))) is False, "two that change places, twice"
    assert equal(Watched().look(slice(32, 37))) is None
    column = [(place, 7) for place in range(5)]
    assert equal(Watched((32, 16, 24)).look(*column)) is None


def test_a_row_is_no_further_off_than_answers_are():
    assert equal(Watched().look(17, by=49.0)) is False
    assert equal(Watched().look(17, by=51.0)) is None
    assert equal(Watched().look(17, by=math.nan)) is None


def test_the_channels_of_a_place_are_one_row():
    shape = (4, 64, 8, 8)
    assert equal(Watched(shape).look((1, slice(None), 3, 5))) is False
    assert equal(Watched(shape).look((1, slice(None), 3))) is None, "eight places side by side"
    assert equal(Watched((4, 64, 64)).look((1, slice(None), 3))) is False
    assert equal(Watched((4, 8, 8, 64)).look((1, 3, 5))) is False


def test_of_one_dimension_a_row_is_a_number():
    assert equal(Watched((256,)).look(17)) is False
    assert equal(Watched((256,)).look(*range(0, 252, 28))) is None


def test_what_never_moves_hangs_on_no_choice():
    assert equal(Watched(scale=replace(PLAIN, signal=0.0)).look(17)) is None


def test_very_large_outputs_are_not_looked_at_by_rows():
    many = torch.zeros(1).expand((1 << 27) + 64)
    assert rows_off(many, many, 1.0, lambda mended: True) is None
    assert rows_off(many[:256], many[:256], 1.0, lambda mended: True) is not None


def often(watch, calls, row=lambda call: 37 * call % 256):
    """How many of the calls hold until one does not; `calls` says which have a row that is off."""
    for number, wrong in enumerate(calls):
        if equal(watch.look(*[row(number)] * wrong)) is None:
            return number
    return len(calls)


def test_of_ten_thousand_rows_one_is_off():
    once = [call % 30 == 0 for call in range(600)]
    assert often(Watched(), once) < 200, "256 rows in one call of 39"
    assert often(Watched(), [call % 50 == 0 for call in range(600)]) == 600
    assert often(Watched((600, 8)), once, row=lambda call: 37 * call % 600) == 600


def test_however_many_there_are_no_more_than_a_tenth_of_the_calls_are():
    def row(call):
        return 37 * call % 5000

    shape = (5000, 2)
    assert often(Watched(shape), [call % 10 == 0 for call in range(300)], row) == 300
    assert often(Watched(shape), [call % 8 == 0 for call in range(300)], row) < 300


def test_the_same_row_is_not_off_again_and_again():
    calls = [call % 50 == 0 for call in range(300)]
    late = [call in (0, 1, 1100) for call in range(1101)]
    assert often(Watched((5000, 2)), calls, row=lambda call: 17) == 100
    assert often(Watched((5000, 2)), late, lambda call: 17) == 1101


def test_rows_that_are_off_too_often_are_in_no_doubt():
    """A row that is another is no coarse answer, which float64 could tell."""
    watch = Watched(limit=1e-2)
    near = 2e-2 * math.sqrt(CODES[0])
    assert not watch.in_doubt(17, by=near), "one that a near tie explains"
    assert not any(watch.in_doubt(17, by=near) for _ in range(9)), "nor at one place each time"
    assert Watched(limit=1e-2, chooses=False).in_doubt(17, by=near)


def test_it_is_said_how_often():
    watch = Watched()
    found = [watch.look(17) for _ in range(3)][-1]
    assert found.how == "the same row is off in 3 of 3 calls, and 2 may"
    watch = Watched()
    found = [watch.look(row) for row in (3, 90, 180)][-1]
    assert found.how == "a row is off in 3 of 3 calls, and 2 may"


def test_what_was_rehearsed_is_forgotten():
    watch = Watched()
    for _ in range(9):
        watch.begin()
        assert equal(watch.look(17)) is False


def test_a_row_that_is_off_costs_no_tier_but_too_many_do():
    slots = lay_out([("y", "float32", (256, 64))])
    near, far = tolerance(limit=1e-4), tolerance(limit=1e-2)
    judge = Agreement(replace(near, looser=far), slots)
    raw = room(slots)
    (answer,) = views(slots, raw[0])
    answer[17] = 2e-2
    found = [judge.look(raw[:1], raw[1:]) for _ in range(4)]
    assert [(seen.equal, seen.tally.looser) for seen in found] == [(False, 0)] * 2 + [(True, 1)] * 2


def test_outputs_that_take_turns_are_one():
    slots = lay_out([(name, "float32", CODES) for name in "abcde"])
    judge = Agreement(tolerance(outputs=5), slots)
    found = []
    for leaf in range(5):
        raw = room(slots)
        views(slots, raw[0])[leaf][17] = 1.0
        found.append(equal(judge.look(raw[:1], raw[1:])))
    assert found[:3] == [False, False, None]


def test_beside_such_a_row_another_output_counts():
    slots = lay_out([("y", "float32", CODES), ("loss", "float32", ()), ("i", "int64", (256,))])
    for wrong, holds in ((1, None), (2, False)):
        judge = Agreement(tolerance(outputs=3), slots)
        raw = room(slots)
        leaves = views(slots, raw[0])
        leaves[0][17] = 1.0
        leaves[wrong].view(-1)[0] = 1
        assert equal(judge.look(raw[:1], raw[1:])) is holds
    leaves[2][:63:7] = 1
    assert equal(judge.look(raw[:1], raw[1:])) is None, "nine whole numbers"


class Nearest(nn.Module):
    """Distances in one of two forms, and the code at the least."""

    def __init__(self, codes, *, expanded):
        super().__init__()
        self.codes, self.expanded = codes, expanded

    def forward(self, x):
        c = self.codes
        if self.expanded:
            return c[torch.addmm((c * c).sum(1), x, c.T, alpha=-2).argmin(1)]
        return c[((x[:, None] - c) ** 2).sum(-1).argmin(1)]


def test_codes_that_are_equally_near_to_one_row_in_thousands():
    """Between the two codes nearest to it: what is nearer hangs on the form of the distance."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.randn(64, 24, generator=generator)
    plain, expanded = (Nearest(codes, expanded=way) for way in (False, True))
    slots = lay_out([("y", "float32", CODES)])
    judge, unequal = Agreement(tolerance(limit=2e-3), slots), 0
    for call in range(200):
        x = torch.randn(CODES, generator=generator)
        if call == 150:
            x[17] = tied(codes, plain, expanded, generator)
        raw = torch.stack([y(x).view(-1).view(torch.uint8) for y in (expanded, plain)])
        found = judge.look(raw[:1], raw[1:])
        assert not isinstance(found, Miss), found
        unequal += not found.equal
        assert call != 150 or not found.equal
    assert unequal <= 2


def tied(codes, plain, expanded, generator):
    """A row to which the two programs find another code the nearest."""
    while True:
        x = torch.randn(4096, 24, generator=generator)
        first, second = torch.cdist(x, codes).topk(2, largest=False).indices.T
        a, b = codes[first].double(), codes[second].double()
        out = ((x - a) ** 2).sum(1) - ((x - b) ** 2).sum(1)
        x = (x + (b - a) * (-out / (2 * ((b - a) ** 2).sum(1)))[:, None]).float()
        other = (plain(x) != expanded(x)).any(1)
        if other.any():
            return x[other][0]

"""Spot checks: which of the timed calls are looked at again, and that they stay as they were."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from exploits.simulated_machine import (  # noqa: E402 - torch
    TWELVE_BLOCKS,
    Machine,
    SimulatedRunner,
    our_watch,
)

from pike_hpc.evaluate.judge_side import WrongAnswer  # noqa: E402 - torch
from pike_hpc.evaluate.judge_spot_checks import (  # noqa: E402 - torch
    FEWEST,
    MOST,
    OFFERS,
    ROOM_BYTES,
    TIME_S,
    SpotChecks,
    most_of,
)

pytestmark = pytest.mark.torch


def call(number):
    """Bytes that say which call it was."""
    return torch.full((4,), float(number)).view(torch.uint8)


def number_of(raw):
    return int(raw.view(torch.float32)[0])


@given(seed=st.randoms(use_true_random=False), most=st.integers(0, 8), offered=st.integers(0, 60))
def test_so_many_calls_are_kept_and_none_twice(seed, most, offered):
    checks = SpotChecks(most, below=seed.randrange)
    for number in range(offered):
        checks.offer(call(number), call(number))
    kept = [number_of(seen.packed) for seen in checks.kept]
    assert len(set(kept)) == len(kept) == min(most, offered)
    assert kept == [number_of(seen.answer) for seen in checks.kept]


def test_each_call_is_as_likely_as_any_other():
    """All that may be drawn are, in turn: six calls, two of which are kept."""
    found = {number: 0 for number in range(6)}
    for third in range(3):
        for fourth in range(4):
            for fifth in range(5):
                for sixth in range(6):
                    draws = iter((third, fourth, fifth, sixth))
                    checks = SpotChecks(2, below=lambda n, draws=draws: next(draws))
                    for number in range(6):
                        checks.offer(call(number), call(number))
                    for seen in checks.kept:
                        found[number_of(seen.packed)] += 1
    assert set(found.values()) == {3 * 4 * 5 * 6 * 2 // 6}


def test_what_is_kept_stays_when_the_buffer_is_written_again_and_goes_with_a_new_beginning():
    checks, buffer = SpotChecks(2), call(1)
    checks.offer(call(0), buffer)
    buffer.copy_(call(2))
    (seen,) = checks.kept
    assert number_of(seen.answer) == 1
    checks.begin()
    assert not checks.kept


def test_large_calls_and_slow_ones_are_few():
    assert most_of(0, 0.0) == most_of(ROOM_BYTES // MOST, TIME_S / MOST) == MOST
    assert FEWEST < most_of(ROOM_BYTES // 4, 0.0) < MOST
    assert FEWEST < most_of(0, TIME_S / 4) < MOST
    assert most_of(8 * ROOM_BYTES, 0.0) == most_of(0, 8 * TIME_S) == FEWEST
    assert most_of(0, 0.0, 4) == most_of(ROOM_BYTES // MOST, TIME_S / MOST, 4) == 4 * MOST
    assert most_of(8 * ROOM_BYTES, 0.0, 4) == FEWEST


class Numbered(SimulatedRunner):
    """Answers with the number of its call."""

    def __init__(self, machine, ms=1.0):
        super().__init__(machine, ms)
        self.calls = 0

    def windows(self, op, inputs, answers):
        took = super().windows(op, inputs, answers)
        for answer in answers[: len(inputs)]:
            self.calls += 1
            answer.copy_(call(self.calls))
        return took


def watched(candidate, machine, **more):
    return our_watch(SimulatedRunner(machine, 1.0), candidate, limit=1e9, **more)


def test_only_calls_of_blocks_that_count_are_looked_at():
    machine = Machine(lambda now: 1.0, seed=1)
    candidate = Numbered(machine)
    watch = watched(candidate, machine, checks=1000)
    found, _ = watch.measure(TWELVE_BLOCKS)
    seen = [number_of(each.answer) for each in watch.spotted]
    blocks = TWELVE_BLOCKS.min_blocks
    assert blocks <= len(set(seen)) == len(seen) <= OFFERS * blocks
    first_counted = candidate.calls - found.windows - blocks  # each has a warm call
    assert min(seen) > first_counted > 10
    before = candidate.calls
    watch.measure(TWELVE_BLOCKS)
    assert min(number_of(each.answer) for each in watch.spotted) > before, "of the last timing"


def test_only_calls_of_blocks_that_count_are_counted_as_coarse_or_not():
    machine = Machine(lambda now: 1.0, seed=1)
    first = Numbered(machine)
    found, _ = watched(first, machine).measure(TWELVE_BLOCKS)
    before = first.calls - found.windows - TWELVE_BLOCKS.min_blocks  # each has a warm call
    # Its answers are the numbers of its calls: off by so much from the reference's ones.
    for usual, coarse in ((before - 1.0, 1.0), (1e9, 0.0)):
        machine = Machine(lambda now: 1.0, seed=1)
        watch = watched(Numbered(machine), machine, usual=usual)
        watch.measure(TWELVE_BLOCKS)
        assert watch.tally.part == coarse, "exact until its blocks count, and never afterwards"


def test_of_calls_that_share_a_window_it_is_said_which_one_was_wrong():
    machine = Machine(lambda now: 1.0, seed=1)
    reference, candidate = SimulatedRunner(machine, 0.1), Numbered(machine, 0.1)
    with pytest.raises(WrongAnswer) as raised:
        our_watch(reference, candidate, limit=100.0).measure(TWELVE_BLOCKS)
    # It answers with the number of its call. The 102nd is off by too much; two were to wake it.
    assert str(raised.value) == (
        "off by 1.01e+02 of the signal, over 1.00e+02, in call 100 of 165, held against the "
        "reference beside it"
    )

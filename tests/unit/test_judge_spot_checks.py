"""Spot checks among timed inputs: where they lie, and that each is asked once and kept."""

import itertools

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

from pike_hpc.evaluate.judge_spot_checks import (  # noqa: E402 - torch
    STRETCHES,
    SpotCheck,
    SpotChecks,
)

pytestmark = pytest.mark.torch

MANY = len(STRETCHES) - 1


def made(count):
    """Checks that can be told apart."""
    inputs = [torch.full((4,), float(2 + i)).view(torch.uint8) for i in range(count)]
    return [SpotCheck(packed, [packed.view(torch.float32)]) for packed in inputs]


def asked(checks, blocks):
    """(block, check) of so many blocks."""
    found = []
    for block in range(blocks):
        check = checks.due(block)
        if check:
            found.append((block, check))
            checks.answered()
    return found


@given(seed=st.randoms(use_true_random=False), blocks=st.integers(1, 120))
def test_each_stretch_has_one_anywhere_in_it_and_none_comes_twice(seed, blocks):
    found = asked(SpotChecks(made(MANY), seed.randrange), blocks)
    assert len({id(check) for _, check in found}) == len(found)
    at = [block for block, _ in found]
    whole = [s for s in itertools.pairwise(STRETCHES) if s[1] <= blocks]
    for start, end in whole:
        assert sum(start <= block < end for block in at) == 1
    assert len(whole) <= len(at) <= len(whole) + 1


def test_every_block_of_a_stretch_may_hold_its_check():
    first = {asked(SpotChecks(made(1), lambda n, k=k: k), 9)[0][0] for k in range(2)}
    assert first == {1, 2}


def test_a_block_that_the_candidate_disturbed_is_repeated_with_another():
    checks = SpotChecks(made(MANY), lambda n: 0)
    first, second = checks.due(1), checks.due(1)
    assert first is not second
    assert checks.missed
    checks.answered()
    assert not checks.missed
    assert checks.due(1) is None
    third = checks.due(3)
    assert third is not None
    assert all(third is not each for each in (first, second))


def test_who_answered_none_since_it_began_is_known():
    checks = SpotChecks(made(2), lambda n: 0)
    assert checks.missed
    asked(checks, 2)
    assert not checks.missed
    checks.begin()
    assert checks.missed
    asked(checks, 2)
    assert not checks.missed
    checks.begin()
    assert asked(checks, 9) == [], "they are used up"
    assert checks.missed
    assert not SpotChecks(()).missed


class Coarse(SimulatedRunner):
    """Off by a hundred thousandth in calls that the rule names, by number."""

    def __init__(self, machine, ms, rule):
        super().__init__(machine, ms)
        self.calls, self._rule = 0, rule

    def windows(self, op, inputs, answers):
        took = super().windows(op, inputs, answers)
        for answer in answers[: len(inputs)]:
            self.calls += 1
            answer.view(torch.float32).add_(0.9e-5 if self._rule(self.calls) else 0.0)
        return took


def watched(rule, checks):
    """A stopwatch over such a candidate, and that."""
    machine = Machine(lambda now: 1.0, seed=1)
    candidate = Coarse(machine, 1.0, rule)
    reference = SimulatedRunner(machine, 1.0)
    return our_watch(reference, candidate, checks=checks, usual=0.5e-5), candidate


def test_what_a_candidate_answers_to_checks_is_kept():
    watch, _ = watched(lambda call: True, made(MANY))
    watch.measure(TWELVE_BLOCKS)
    assert len(watch.spotted) in (3, 4), "of blocks 1 to 11 in stretches of 2, 2, 5, 10"
    for seen in watch.spotted:
        off = seen.answer.view(torch.float32) - seen.check.truths[0]
        assert off.mean().item() == pytest.approx(0.9e-5, rel=0.1)


def test_only_calls_of_blocks_that_count_are_counted_as_coarse_or_not():
    watch, candidate = watched(lambda call: False, ())
    found, _ = watch.measure(TWELVE_BLOCKS)
    assert watch.coarse == 0.0
    before = candidate.calls - found.windows - TWELVE_BLOCKS.min_blocks  # each has a warm call
    assert before > 10
    watch, _ = watched(lambda call: call > before, ())
    watch.measure(TWELVE_BLOCKS)
    assert watch.coarse == 1.0, "exact while the blocks were planned, and never afterwards"

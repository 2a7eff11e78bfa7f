"""Calls in doubt: they miss the reference by so little that it may be what is off."""

import math
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from exploits.simulated_machine import (  # noqa: E402 - torch
    TWELVE_BLOCKS,
    Machine,
    SimulatedRunner,
    our_watch,
)

from pike_hpc.evaluate.correctness import LeafScale  # noqa: E402 - torch
from pike_hpc.evaluate.judge_agreement import NEAR_MISS, Agreement, Tolerance  # noqa: E402
from pike_hpc.evaluate.judge_memory import views  # noqa: E402 - torch
from pike_hpc.evaluate.judge_side import WrongAnswer  # noqa: E402 - torch
from pike_hpc.evaluate.layout import ALIGNMENT, buffer_bytes, lay_out  # noqa: E402 - torch
from pike_hpc.records import Tier  # noqa: E402 - torch

pytestmark = pytest.mark.torch

PLAIN = LeafScale(signal=1.0, limits={Tier.FP32: 1e-3})
BOTH = Tolerance(
    scales=(PLAIN, replace(PLAIN, moves=1.0)),
    limits=(1e-2,) * 2,
    local=(1e-1,) * 2,
    usual=(5e-3,) * 2,
    pike=False,
)
"""Of floating numbers and whole ones that move with the input."""


def doubted(tolerance, changes, *, room=9, calls=4):
    """What is seen of answers with `changes`, by (call, output), and the calls in doubt.

    A change is what all of the output is, or how many of its numbers are another one.
    """
    slots = lay_out([("y", "float32", (64, 4)), ("i", "int64", (5000,))])
    references = torch.zeros(calls, -(-buffer_bytes(slots) // ALIGNMENT) * ALIGNMENT).byte()
    answers = references.clone()
    leaves = [views(slots, row) for row in answers]
    for (call, output), change in changes.items():
        where = slice(None) if output == 0 else slice(0, 200 * change, 200)
        leaves[call][output][where] = change
    asked = []

    def doubt(call):
        asked.append(call)
        return len(asked) <= room

    return Agreement(tolerance, slots).look(answers, references, doubt), asked


def test_a_near_miss_is_in_doubt_and_those_beside_it_are_looked_at():
    near = 0.9e-2 * NEAR_MISS
    seen, asked = doubted(BOTH, {(1, 0): near, (3, 0): 7e-3})
    assert asked == [1]
    assert (seen.equal, seen.tally.calls, seen.tally.coarse) == (True, 4, 1)
    assert doubted(BOTH, {(1, 0): near, (2, 0): -near})[1] == [1, 2]
    missed, asked = doubted(BOTH, {(1, 0): near, (2, 0): 0.1})
    assert (missed.call, asked) == (2, [1]), "by much"
    missed, asked = doubted(BOTH, {(1, 0): near, (2, 0): near}, room=1)
    assert (missed.call, asked) == (2, [1, 2]), "one too many"


@pytest.mark.parametrize(
    ("tolerance", "changes"),
    [
        pytest.param(BOTH, {(1, 0): 1.1e-2 * NEAR_MISS}, id="by much"),
        pytest.param(BOTH, {(1, 0): math.nan}, id="not a number"),
        pytest.param(BOTH, {(1, 0): 1.5e-2, (1, 1): 12}, id="whole numbers as well"),
        pytest.param(BOTH, {(1, 1): 12}, id="whole numbers alone"),
        pytest.param(replace(BOTH, pike=True), {(1, 0): 1.5e-2}, id="PIKE's rule"),
    ],
)
def test_other_misses_are_in_no_doubt(tolerance, changes):
    missed, asked = doubted(tolerance, changes)
    assert (missed.call, asked) == (1, [])


def test_what_only_the_next_tier_allows_costs_the_tier_unless_float64_is_asked():
    tiers = replace(BOTH, looser=replace(BOTH, limits=(1e-1,) * 2, usual=(5e-2,) * 2))
    for off, room, looser, asked in (
        (1.5e-2, 9, 0, [1]),
        (1.5e-2, 0, 1, [1]),
        (5e-2, 9, 1, []),
    ):
        seen = doubted(tiers, {(1, 0): off}, room=room)
        assert (seen[0].tally.looser, seen[1]) == (looser, asked)


class Off(SimulatedRunner):
    """Answers that are off by `off(call)`."""

    def __init__(self, machine, off, ms):
        super().__init__(machine, ms)
        self.calls, self._off = 0, off

    def windows(self, op, inputs, answers):
        took = super().windows(op, inputs, answers)
        for answer in answers[: len(inputs)]:
            answer.view(torch.float32).add_(self._off(self.calls))
            self.calls += 1
        return took


def in_doubt(off, *, ms=1.0, doubts=32, **more):
    """What the stopwatch holds in doubt of such a program."""
    machine = Machine(lambda now: 1.0, seed=1)
    candidate = Off(machine, off, ms)
    reference = SimulatedRunner(machine, ms)
    watch = our_watch(reference, candidate, limit=1e-2, doubts=doubts, **more)
    watch.measure(TWELVE_BLOCKS)
    offs = [float(seen.answer.view(torch.float32)[0]) - 1 for seen in watch.spotted]
    assert all(float(seen.packed.view(torch.float32)[0]) == 1.0 for seen in watch.spotted)
    return [round(o, 6) for o in offs if o > 1e-2]


@pytest.mark.parametrize("ms", [0.05, 1.0, 60.0])
def test_each_call_that_missed_the_reference_by_little_is_looked_at(ms):
    """Also where calls share a window, or half of all do."""
    every = {0.05: 400, 1.0: 90, 60.0: 2}[ms]

    def off(call):
        return 1.5e-2 + 1e-4 * (call // every) if call and call % every == 0 else 0.0

    found = in_doubt(off, ms=ms)
    assert len(found) == len(set(found)) >= 3
    assert found == sorted(found), "each, in its turn"


@pytest.mark.parametrize("on_cpu", [False, True])
def test_a_pilot_s_one_input_is_in_doubt_once(on_cpu):
    """It is asked four times, and sixteen of a slow program on a CPU."""
    count = 16 if on_cpu else 4
    more = {"ms": 60.0, "on_cpu": True, "sleep": lambda seconds: None} if on_cpu else {}
    assert in_doubt(lambda call: 2e-2 * (call < count), doubts=1, **more) == [0.02]


@pytest.mark.parametrize(
    ("off", "more", "says"),
    [
        pytest.param(lambda call: 4e-2 * (call == 90), {}, "beside it$", id="by much"),
        pytest.param(
            lambda call: 2e-2 * (call > 20 and call % 20 == 0),
            {"doubts": 5},
            "beside it, after 5 that missed it by little$",
            id="often",
        ),
        pytest.param(
            lambda call: {90: 2e-2, 91: 4e-2}.get(call, 0.0),
            {"ms": 0.05},
            "off by 4.0e-02 .* beside it, after 1 that missed it by little$",
            id="in one window",
        ),
        pytest.param(
            lambda call: 2e-2 * (call == 90),
            {"doubts": 0},
            "beside it$",
            id="where float64 is not asked",
        ),
    ],
)
def test_who_misses_it_otherwise_is_wrong(off, more, says):
    with pytest.raises(WrongAnswer, match=says):
        in_doubt(off, **more)

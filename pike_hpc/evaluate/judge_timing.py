"""Request latency of a candidate against the reference, in blocks next to each other in time.

Every window gets an input that nobody has seen, every output is kept and compared with what the
reference's runner answered to the same input. Order within a block alternates. While the
reference is timed the candidate is stopped: CPU time alone does not tell whether it works, because
children that nobody waits for take theirs with them.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median

import torch

from pike_hpc.evaluate.correctness import LOCAL_K, UNEQUAL, compare, part_outside, unequal
from pike_hpc.evaluate.judge_link import RunnerLink
from pike_hpc.evaluate.judge_memory import views
from pike_hpc.evaluate.judge_neighbours import Neighbours
from pike_hpc.evaluate.layout import Slot
from pike_hpc.evaluate.runner import Op
from pike_hpc.evaluate.statistics import (
    Block,
    Estimate,
    StopRule,
    decide,
    estimate,
    windows_per_half,
)

NULL_WINDOWS = 20
SLOW_MS = 50.0
"""From here on one call tells the latency well enough to plan by."""
POOL_BYTES = 1 << 30
"""Inputs and both sides' outputs of one block stay below this, at the price of fewer windows."""

MAX_BUSY = 0.2
"""CPU use of a candidate that rests, as part of the time: OpenMP spins for a while after a call."""

SETTLE_S, SETTLE_STEP_S = 20.0, 0.25
"""How long a candidate's helpers, such as torch's pool of compilers, may take to become quiet
before anything is timed, and how often one looks."""

PIKE_TOLERANCE, MAX_OUTSIDE = 1e-2, 0.01
"""Variant legacy: absolute and relative, and the part of a timed output that may miss it."""


class WrongAnswer(Exception):
    """A timed output is wrong."""


class Busy(Exception):
    """The candidate would not rest, or ran while it was stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far a timed answer may be from the reference runner's, per output leaf."""

    signals: tuple[float, ...]
    limits: tuple[float, ...]
    pike: bool
    """PIKE's rule instead, for all but a small part of the elements: it saw one input, we many."""


@dataclass(slots=True)
class Side:
    """One runner of the pair."""

    link: RunnerLink
    answers: list[torch.Tensor] = field(default_factory=list)
    """Room for the outputs of a block, one buffer a window."""

    def run(self, inputs: list[torch.Tensor], count: int) -> list[float]:
        """Windows over the first `count` inputs; the latency of each."""
        return [self.link.window(Op.CALL, inputs[i], self.answers[i]) for i in range(count)]


class Stopwatch:
    """Times one pair of runners."""

    def __init__(
        self,
        reference: RunnerLink,
        candidate: RunnerLink,
        fresh_input: Callable[[], torch.Tensor],
        tolerance: Tolerance,
        slots: tuple[Slot, ...],
    ) -> None:
        self._reference, self._candidate = Side(reference), Side(candidate)
        self._fresh, self._tolerance, self._slots = fresh_input, tolerance, slots

    def measure(self, rule: StopRule, rng: random.Random) -> tuple[Estimate, tuple[str, ...]]:
        """The estimate, and tags: `early_stop`, `noisy`.

        Raises:
            WrongAnswer, Busy: the candidate's own doing.
            RunnerFailed: of either runner; `.runner` tells whose.
        """
        self._let_settle()
        start = time.monotonic()
        neighbours = Neighbours((self._reference.link, self._candidate.link))
        first = self._room(1)
        latency = max(self._pilot(side, first) for side in (self._reference, self._candidate))
        count = self._affordable(windows_per_half(latency))
        if latency < SLOW_MS:
            self._block(count, False)  # both sides settle: allocators, thread pools, clocks
        null_ms = self._null(first[0], latency)
        blocks: list[Block] = []
        while True:
            blocks.append(self._block(count, len(blocks) % 2 == 1))
            found = estimate(blocks, null_ms, rng)
            decision = decide(found, len(blocks), time.monotonic() - start, rule)
            if decision.stop:
                tags = {"early_stop": decision.early, "noisy": neighbours.noisy()}
                return found, tuple(tag for tag, holds in tags.items() if holds)

    def _let_settle(self) -> None:
        """Wait until the candidate's processes rest. Raises Busy if they never do."""
        end = time.monotonic() + SETTLE_S
        before = self._candidate.link.cpu_s()
        while True:
            time.sleep(SETTLE_STEP_S)
            now = self._candidate.link.cpu_s()
            if now - before <= MAX_BUSY * SETTLE_STEP_S:
                return
            if time.monotonic() > end:
                raise Busy
            before = now

    def _room(self, count: int) -> list[torch.Tensor]:
        """`count` fresh inputs, and room for as many outputs of each side."""
        for side in (self._reference, self._candidate):
            while len(side.answers) < count:
                side.answers.append(side.link.space())
        return [self._reference.link.staged(self._fresh()) for _ in range(count)]

    def _affordable(self, windows: int) -> int:
        sizes = self._reference.link.sizes
        return max(1, min(windows, POOL_BYTES // (sizes[0] + 2 * sizes[1])))

    def _pilot(self, side: Side, inputs: list[torch.Tensor]) -> float:
        """Latency of one side, so that the windows of a block can be counted."""
        first = side.run(inputs, 1)[0]
        return first if first > SLOW_MS else min(side.run(inputs, 1)[0] for _ in range(3))

    def _null(self, inputs: torch.Tensor, latency: float) -> float:
        """The protocol's own constant: input written, doorbell, output copied, no model."""
        count = NULL_WINDOWS if latency < SLOW_MS else 3
        into = self._reference.answers[0]
        link = self._reference.link
        with self._alone():
            return median(link.window(Op.NULL, inputs, into) for _ in range(count))

    def _block(self, count: int, candidate_first: bool) -> Block:
        # The first window of a half wakes threads and caches that slept; it is checked, not timed.
        warm = 1 if count >= 3 else 0
        inputs = self._room(count + warm)
        times: dict[bool, list[float]] = {}
        for is_candidate in (candidate_first, not candidate_first):
            if is_candidate:
                times[True] = self._candidate.run(inputs, count + warm)[warm:]
                if self._candidate.link.inputs_changed(inputs[count + warm - 1]):
                    raise WrongAnswer
            else:
                with self._alone():
                    times[False] = self._reference.run(inputs, count + warm)[warm:]
        self._check(count + warm)
        return Block(reference_ms=tuple(times[False]), candidate_ms=tuple(times[True]))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """The candidate is stopped meanwhile. Raises Busy where it ran all the same."""
        if not self._candidate.link.stop():
            raise Busy
        yield
        if not self._candidate.link.go():
            raise Busy

    def _check(self, count: int) -> None:
        for i in range(count):
            pairs = zip(
                views(self._slots, self._candidate.answers[i]),
                views(self._slots, self._reference.answers[i]),
                self._tolerance.signals,
                self._tolerance.limits,
                strict=True,
            )
            for answer, reference, signal, bound in pairs:
                if self._tolerance.pike:
                    good = part_outside(answer, reference, PIKE_TOLERANCE) <= MAX_OUTSIDE
                else:
                    good = agrees(answer, reference, signal, bound)
                if not good:
                    raise WrongAnswer


def agrees(answer: torch.Tensor, reference: torch.Tensor, signal: float, bound: float) -> bool:
    """Whether a timed answer is the reference's, within `bound` signals."""
    if not answer.is_floating_point() and not answer.is_complex():
        return unequal(answer, reference) <= UNEQUAL
    found = compare(answer, reference, signal)
    return found.error <= bound and found.local <= LOCAL_K * bound

"""Request latency of a candidate against the reference, in blocks next to each other in time.

Every call gets an input that nobody has seen, every output is kept and compared with what the
reference's runner answered to the same input. Short calls share a window. One in which whole
numbers differ, if only by near ties, counts as no faster than the others (`judge_unequal`). Order
within a block alternates. While the reference is timed the candidate is stopped: CPU time alone
does not tell whether it works, because children that nobody waits for take theirs with them.
Kernels that it queued before it was stopped are waited for; a block with some of them in it does
not count, nor does one in which the candidate ran on.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import torch

from pike_hpc.evaluate.judge_agreement import Agreement, Miss, Tally, Tolerance
from pike_hpc.evaluate.judge_drain import PATIENCE_S, Company
from pike_hpc.evaluate.judge_link import RunnerLink
from pike_hpc.evaluate.judge_neighbours import Neighbours
from pike_hpc.evaluate.judge_plan import NULL_WINDOWS, SLOW_MS, Plan, affordable
from pike_hpc.evaluate.judge_side import Side, Window, WrongAnswer
from pike_hpc.evaluate.judge_spot_checks import OFFERS, SpotChecks, Spotted
from pike_hpc.evaluate.judge_unequal import Timed, counted, too_many
from pike_hpc.evaluate.judge_uneven import evened
from pike_hpc.evaluate.layout import Slot
from pike_hpc.evaluate.nvml_guard import Guard, History, unread
from pike_hpc.evaluate.runner import Op
from pike_hpc.evaluate.statistics import (
    Block,
    Estimate,
    Null,
    StopRule,
    candidate_first,
    decide,
    estimate,
    windows_per_half,
)

PILOT_CALLS, SLOW_PILOT_CALLS, SLOW_PILOT_MS = 4, 16, 4000.0
"""Calls of each side before anything counts. The last two are a slow program's on a CPU, where
pages fault, and how long it may take: two ReLUs of 128 MB had new pages up to their fourteenth
calls (two cores, 2026-11-26)."""

MAX_BUSY = 0.2
"""CPU use of a candidate that rests, as part of the time: OpenMP spins for a while after a call."""

CORES_REST_S = 0.02
"""How long nothing is asked of either side before a short model's half on a CPU. Threads that begin
just when another program's have ended are now slow and now not: LeNet's reference was 0.93 and 0.96
times as fast as itself, half an interval 10 %; with a rest it is 1.00 and 2 %
(tests/bench/identity.py --device cpu --tasks 4, two cores, 2026-11-28; what rests of other lengths
do: tests/bench/roles.py)."""

SHORT_MS = 0.3
"""Models that take less share windows."""

REST_S = 1.0
"""How long kernels that a candidate left may go on after it was stopped. An answer that has been
taken has none."""

SETTLE_S, SETTLE_STEP_S = 60.0, 0.25
"""How long a candidate's helpers, such as torch's pool of compilers, may take to become quiet
before anything is timed, and how often one looks."""

FORGIVEN = 2
"""Blocks of a verdict, discarded, in which the candidate may have run while it was stopped, or have
been slow to stop. A loaded machine has them with honest programs as well: a verdict in some 450 on
two cores (tests/integration/test_submit_run.py beside other work, 2026-11-23)."""


class Busy(Exception):
    """The candidate would not rest, or something of it ran while it was stopped. Says which."""


class NoisyLane(Exception):
    """Too few blocks counted, waiting included; the message says what was wrong with them."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What a block's answers look like, in its windows whose whole numbers are equal."""

    equal: tuple[int, ...]
    """These windows."""
    tally: Tally
    """Of their calls."""


class Stopwatch:
    """Times one pair of runners."""

    def __init__(
        self,
        reference: RunnerLink,
        candidate: RunnerLink,
        fresh_inputs: Callable[[int], Sequence[torch.Tensor]],
        tolerance: Tolerance,
        slots: tuple[Slot, ...],
        company: Company,
        *,
        checks: int = 0,
        doubts: int = 0,
        bounded: bool = False,
        goes_on: bool = False,
        on_cpu: bool = False,
        spun: tuple[Collection[int], Collection[int]] = ((), ()),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """The pair's stopwatch.

        `checks`, `doubts`: see `SpotChecks`. `goes_on`: see `Side`. `on_cpu`: whether models run on
        the host's cores. `spun`: the cores that the judge and that the runners spin on, if they do.
        """
        self._clock, self._bounded, self._spun = clock, bounded, spun
        self._slow_calls = SLOW_PILOT_CALLS if on_cpu else 1
        self._rest_s, self._sleep = CORES_REST_S if on_cpu else 0.0, sleep
        self._reference, self._candidate = (
            Side(link, goes_on=goes_on) for link in (reference, candidate)
        )
        self._company, self._accompanied = company, False
        self._restless = 0
        """Blocks in which the candidate did not stop, or not stay so."""
        self._fresh, self._agreement = fresh_inputs, Agreement(tolerance, slots)
        self._checks = SpotChecks(checks, doubts)
        self._nulls: list[float] = []
        self._checked: list[Checked] = []
        """Of each block that counts."""
        self._answered = 0
        """Calls whose answers were looked at, whether they count or not."""
        self._warmth: Window | None = None
        """A call's inputs that both sides have seen, when they were planned for."""
        self._guard = Guard(unread, History())

    @property
    def tally(self) -> Tally:
        """Of the calls that count."""
        return sum((c.tally for c in self._checked), Tally())

    @property
    def spotted(self) -> Sequence[Spotted]:
        """Some of the calls that count, and all that missed the reference by little."""
        return self._checks.kept

    def settle(self) -> None:
        """Wait until the candidate's processes rest. Raises Busy if they never do."""
        end = time.monotonic() + SETTLE_S
        before = self._candidate.link.cpu_s()
        while True:
            time.sleep(SETTLE_STEP_S)
            now = self._candidate.link.cpu_s()
            if now - before <= MAX_BUSY * SETTLE_STEP_S:
                return
            if time.monotonic() > end:
                raise Busy(f"it did not come to rest within {SETTLE_S:.0f} s")
            before = now

    def measure(
        self, rule: StopRule, guard: Guard | None = None
    ) -> tuple[Estimate, tuple[str, ...]]:
        """The estimate, and tags: `early_stop`, `noisy`, `uneven`. Best after `settle`.

        Args:
            rule: when enough is known.
            guard: says which blocks count; all do where it is None.

        Raises:
            WrongAnswer, Busy: the candidate's own doing.
            NoisyLane: nobody's doing here.
            RunnerFailed: of either runner; `.runner` tells whose.
        """
        self._guard = guard or self._guard
        self._guard.begin()
        neighbours = Neighbours((self._reference.link, self._candidate.link), *self._spun)
        latency = self._pilot()
        start = self._clock()
        plan = self._settled(self._plan(latency))
        blocks: list[Timed] = []
        lost_s = 0.0
        while True:
            began = self._clock()
            block = self._block(plan, candidate_first(len(blocks)))
            worn = self._guard.worn
            if worn and len(blocks) < rule.min_blocks:
                raise NoisyLane(self._guard.why)
            if block is not None:
                blocks.append(block)
                if often := too_many(blocks):
                    raise WrongAnswer(often)
                took = block.block
                better = self._plan(max(median(took.reference_ms), median(took.candidate_ms)))
                if plan.is_short_of(better):
                    # A pilot that was slow, by chance or by design, must not choose how it goes on.
                    plan = self._settled(better)
                    blocks.clear()
                    start, lost_s = self._clock(), 0.0
                    continue
            elif not worn:
                lost_s += self._clock() - began
                continue
            told = counted(blocks)
            if not told:  # only while there are few blocks: five such are too many
                continue
            null = self._null(plan.calls)
            found, uneven = evened(estimate(told, null), told, null)
            spent_s = self._clock() - start - lost_s
            decision = decide(found, len(told), spent_s, rule)
            if decision.stop or worn:
                tags = {
                    "early_stop": decision.early,
                    "noisy": worn or neighbours.noisy(),
                    "uneven": uneven,
                }
                timed = replace(found, windows=found.windows * plan.calls)
                return timed, tuple(tag for tag, holds in tags.items() if holds)

    def _null(self, calls: int) -> Null:
        """The constant of windows of so many calls: no more than it can be by itself.

        It is measured while the candidate is stopped, and copies that this left may go on.
        """
        seen = Null.of(self._nulls, bounded=self._bounded)
        return replace(seen, ms=min(seen.ms, self._guard.most_null_ms(calls)))

    def _plan(self, latency: float) -> Plan:
        """For sides of which the slower takes so many milliseconds."""
        calls = self._calls(latency)
        windows = affordable(self._reference.link, windows_per_half(latency * calls), calls)
        return Plan(windows, calls, warm=latency <= SLOW_MS)

    def _settled(self, plan: Plan) -> Plan:
        """The plan, once a block of it has settled allocators, thread pools and clocks."""
        if plan.warm:
            self._block(plan, False)
        self._agreement.begin()
        self._nulls.clear()
        self._checked.clear()
        self._checks.begin()
        return plan

    def _calls(self, latency: float) -> int:
        """Calls that share a window."""
        places = self._reference.link.places
        if places == 1 or latency > SLOW_MS:
            return 1
        while not self._nulls:
            if self._guard.worn:
                raise NoisyLane(self._guard.why)
            self._block(Plan(1, 1, warm=True), False)
        return places if latency - median(self._nulls) < SHORT_MS else 1

    def _room(self, count: int, calls: int) -> list[Window]:
        """`count` windows of fresh inputs, and room for both sides' answers."""
        for side in (self._reference, self._candidate):
            side.make_room(count, calls)
        fresh = [self._reference.link.staged(packed) for packed in self._fresh(count * calls)]
        return [tuple(fresh[i * calls : (i + 1) * calls]) for i in range(count)]

    def _pilot(self) -> float:
        """Latency of the slower side, so that the windows of a block can be counted."""
        window = self._room(1, 1)
        self._warmth = window[0]
        slowest = 0.0
        for side in (self._reference, self._candidate):
            side.before = window[0]  # neither side's first call is another one than its next
            found: list[float] = []
            while self._is_too_early(found):
                found += side.run(window)
                if side is self._candidate:
                    self._agreement.begin()  # a near tie in this one input is one each time
                    self._check(window)
            slowest = max(slowest, min(found))
        return slowest

    def _is_too_early(self, found: Sequence[float]) -> bool:
        """Whether a pilot of these latencies is too short."""
        if not found or found[0] <= SLOW_MS:
            return len(found) < PILOT_CALLS
        return len(found) < self._slow_calls and sum(found) < SLOW_PILOT_MS

    def _block(self, plan: Plan, reverse: bool) -> Timed | None:
        """One block; None where it does not count.

        Raises WrongAnswer, Busy, NoisyLane, RunnerFailed.
        """
        windows = self._room(plan.windows, plan.calls)
        warmth = self._warmth if plan.warm else None
        self._guard.before()
        restless = self._restless
        times: dict[bool, list[float]] = {}
        nulls: list[float] = []
        for is_candidate in (reverse, not reverse):
            if is_candidate:
                self._rest(plan)
                looks = {secrets.randbelow(len(windows)) for _ in range(plan.looks)}
                times[True] = self._candidate.run(windows, looks=looks, warmth=warmth)
            else:
                with self._alone():
                    self._rest(plan)
                    times[False] = self._reference.run(windows, warmth=warmth)
                    # The protocol's own constant, with no model, where the reference was timed.
                    null = windows[:NULL_WINDOWS]
                    nulls = self._reference.run(null, Op.NULL, keep=False, warmth=warmth)
        counts = self._guard.after(reference_last=reverse, company=self._accompanied)
        checked = self._check(windows)
        if self._restless > restless or not counts:
            return None  # nor does its constant: who slows that down seems faster
        self._nulls += nulls
        self._checked.append(checked)
        if checked.equal:
            for at in {secrets.randbelow(checked.tally.calls) for _ in range(OFFERS)}:
                window, call = checked.equal[at // plan.calls], at % plan.calls
                self._checks.offer(windows[window][call], self._candidate.answers[window][call])
        block = Block(reference_ms=tuple(times[False]), candidate_ms=tuple(times[True]))
        return Timed(block=block, equal=frozenset(checked.equal))

    def _rest(self, plan: Plan) -> None:
        """Ask nothing of anybody, where the plan's calls are short."""
        if plan.warm and self._rest_s:
            self._sleep(self._rest_s)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """The candidate is stopped meanwhile, and nothing that it queued runs at the beginning.

        Whether something runs at the end is noted, and whether the block is a restless one. Raises
        Busy at the third of these, and at once where its kernels end with its life alone; NoisyLane
        where kernels go on without it.
        """
        stopped = self._candidate.link.stop()
        drained = self._company.gone_within(REST_S, glance=True)
        if not drained and not self._company.gone_within(PATIENCE_S):
            self._candidate.link.end()
            if self._company.gone_within(PATIENCE_S):
                raise Busy("its kernels went on after it was stopped")
            raise NoisyLane("kernels of another process went on beside the reference")
        yield
        self._accompanied = self._company.seen()
        held = {
            "it would not stop": stopped,
            "its kernels went on after it was stopped": drained,
            "it ran while it was stopped": self._candidate.link.go(),
        }
        wrong = [what for what, holds in held.items() if not holds]
        self._restless += bool(wrong)
        if self._restless > FORGIVEN:
            raise Busy(wrong[0])

    def _check(self, windows: Sequence[Window]) -> Checked:
        """What the candidate answered. Raises WrongAnswer."""
        equal, tally, before = [], Tally(), self._answered
        self._answered += sum(map(len, windows))
        sides = zip(windows, self._candidate.answers, self._reference.answers, strict=False)
        for i, (window, mine, its) in enumerate(sides):
            seen = self._agreement.look(mine, its, partial(self._doubt, window, mine))
            if isinstance(seen, Miss):
                doubted = self._checks.doubted
                others = f", after {doubted} that missed it by little" if doubted else ""
                raise WrongAnswer(
                    f"{seen.how}, in call {before + seen.call + 1} of {self._answered}, held "
                    f"against the reference beside it{others}"
                )
            before += len(window)
            if seen.equal:
                equal.append(i)
                tally += seen.tally
        return Checked(tuple(equal), tally)

    def _doubt(self, window: Window, mine: torch.Tensor, call: int) -> bool:
        """Whether a call that misses the reference by little will be held against float64."""
        return self._checks.doubt(window[call], mine[call])

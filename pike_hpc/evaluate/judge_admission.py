"""Whether a task can tell right from wrong: signal, noise, and mutants that must fail.

Run once per task and way of drawing weights, before anybody is judged on it; docs/evaluator.md
has the rules. On a CPU tf32 ends at its floor, and half's own noise is measured only where a call
takes less than CHEAP_CALL_S.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from pike_hpc.evaluate.admission import Admission
from pike_hpc.evaluate.correctness import (
    CAP,
    MAX_NOISE,
    MIN_SIGNAL,
    UNEQUAL,
    limit,
    own_share,
    unequal,
)
from pike_hpc.evaluate.judge_memory import views
from pike_hpc.evaluate.judge_mutants import Edit, layer_edits, plain_edits, zeroed_weights
from pike_hpc.evaluate.judge_mutants_addends import addend_edits, inputs_as_answers
from pike_hpc.evaluate.judge_mutants_parts import part_edits
from pike_hpc.evaluate.judge_other_weights import with_padding
from pike_hpc.evaluate.judge_range import WideRange, asserts, wide_range
from pike_hpc.evaluate.judge_scores import flat_scores
from pike_hpc.evaluate.judge_sharpen import gains_of
from pike_hpc.evaluate.judge_signal import ADMISSION_SEEDS, Leaves, Refusal, Signal, alike
from pike_hpc.evaluate.judge_structure import structure_of
from pike_hpc.evaluate.judge_truth import FLOAT64, Truth, WeightsBy
from pike_hpc.evaluate.judge_unread import UNREAD, unread
from pike_hpc.evaluate.judge_variety import variety
from pike_hpc.evaluate.judge_weights import moved_constants
from pike_hpc.evaluate.layout import Slot
from pike_hpc.records import Tier

UNMEASURABLE = 1e30
"""Stands for an error that is not finite, which a record can't hold."""

ALIKE_GAIN = 1.25
"""What makes attention's scores would have to be larger by more than this for it to choose: they
are so much alike that hardly anything depends on them."""

FINER = {Tier.FP32: 1 / 30, Tier.TF32: 1 / 2}
"""Of bfloat16's own noise, that of TF32 is a quarter and float32's next to nothing: where all three
are small beside the signal, as where an answer is mostly what it was given, a tier ends before what
is coarser by nature."""

SCORES = "scores_flat"
PLAIN = "plain_layer_skipped"
PART = "part_skipped"
ADDEND = "addend_skipped"
RETURNED = "input_returned"
MAY_DO_NOTHING = frozenset({PLAIN, PART, ADDEND, RETURNED})
"""What the strictest tier can't tell from what is right is not wrong."""
FAINT = frozenset({SCORES, UNREAD}) | MAY_DO_NOTHING
"""Fresh weights make these mild: a tier may end nearer for their sake."""
CLOSELY = frozenset({UNREAD, PART, ADDEND, RETURNED})
"""Held to their stretches, as candidates are."""
MOST_RETURNED = 12
"""Pairs of an output and an input of its shape."""
TIMED_K = 2.0
"""Timed answers may be off by so many limits: a mutant is to be further off, where half reaches
beyond CAP."""
ROOM_K = 4.0
"""A tier may end that many times beyond its own noise, and no nearer, where a mutant bounds it:
torch's autocast keeps norms in float32, and programs that do not are three times as far off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """What the errors of one task are held against."""

    admission: Admission
    limits: tuple[Mapping[Tier, float], ...]
    """Per output leaf; empty for leaves that must be equal."""
    noise: tuple[float, ...]
    """Per output leaf, E of the reference as it ships."""
    signals: tuple[float, ...] = ()
    """Per output leaf, S where it has few numbers; 0 where an exam's own inputs tell."""
    wide: WideRange | None = None
    """What is asked beyond the task's own inputs."""
    half_noise: float = 0.0
    """E of the reference in bfloat16, its worst leaf; 0 where that was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A wrong answer that must not pass."""

    name: str
    what: str
    """Which it is of its name, for a person."""
    off: tuple[float, ...]
    """Per output leaf: error over the signal, or the part of whole numbers that differ."""
    error: float
    """The worst over float leaves; over all where there are none."""


def admit(truth: Truth, task_digest: str) -> Yardstick:
    """Measure signal and noise and try the mutants."""
    start = time.monotonic()
    cuda = truth.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    try:
        found = _Trial(truth).yardstick(task_digest)
    except Refusal as refusal:
        leaves = len(truth.frame.output_slots)
        admission = Admission(task_digest=task_digest, admitted=False, reason=str(refusal))
        found = Yardstick(admission=admission, limits=({},) * leaves, noise=(0.0,) * leaves)
    admission = replace(
        found.admission,
        reference_precision=truth.precision,
        native_precision=truth.native,
        parameters=truth.parameters,
        calibrated=truth.calibrated,
        resets_state=truth.resets,
        memory_gib=round(torch.cuda.max_memory_allocated() / 2**30, 2) if cuda else 0.0,
        seconds=round(time.monotonic() - start, 2),
    )
    return replace(found, admission=admission)


class _Trial:
    """One admission."""

    def __init__(self, truth: Truth) -> None:
        """Run the reference. Raises Refusal."""
        self._truth, self._signal = truth, Signal(truth)
        self._slots: tuple[Slot, ...] = truth.frame.output_slots
        self._floats = self._signal.floats
        self._noise = self._signal.noise
        self._known: dict[Tier, dict[int, float]] = {}
        """E of the reference in a tier's arithmetic, by output leaf, where that was measured."""
        self._half_noise = 0.0
        self._unrounded: dict[int, float] = {}
        """Where half would end if its answers were not rounded, by output leaf."""

    def yardstick(self, task_digest: str) -> Yardstick:
        """Limits by tier, less the tiers at which a mutant passes. Raises Refusal."""
        self._demand_variety()
        self._demand_nothing_hidden()
        limits = self._limits()
        found, missing = self._mutants()
        mutants = [m for m in found if self._is_wrong(m, limits)]
        held = [m for m in mutants if m.name not in FAINT or len(self._tiers()) > 1]
        self._cap(held, limits)
        self._narrow(held, limits)
        for mutant in sorted(held, key=lambda m: m.error):  # the mildest decides
            if mutant.name in FAINT:
                self._tighten(mutant, limits)
        offered = {t: min((x[t] for x in limits if x), default=0.0) for t in self._tiers()}
        inadmissible = {t.value: self._not_offered(t) for t in Tier if t not in offered}
        for tier in offered:
            passing = [m for m in held if self._passes(m, tier, limits)]
            if passing:
                worst = max(passing, key=lambda m: m.error)
                inadmissible[tier.value] = f"{worst.what} passes, off by {worst.error:.1e}"
        kept = {t: size for t, size in offered.items() if t.value not in inadmissible}
        ratio = min((self._signal.ratio(i) for i in self._floats), default=1.0)
        reason = "" if self._truth.legacy else self._unusable(ratio, kept, inadmissible)
        mildest: dict[str, float] = {}
        for mutant in mutants:
            known = mildest.get(mutant.name, UNMEASURABLE)
            mildest[mutant.name] = min(known, mutant.error)
        return Yardstick(
            admission=Admission(
                task_digest=task_digest,
                admitted=not reason,
                reason=reason,
                signal=ratio,
                noise=min(max(self._noise, default=0.0), UNMEASURABLE),
                limits={t.value: size for t, size in kept.items()},
                mutants=mildest,
                not_applicable=tuple(missing),
                inadmissible=inadmissible,
            ),
            limits=tuple({t: x for t, x in leaf.items() if t in kept} for leaf in limits),
            noise=tuple(self._noise),
            signals=tuple(self._signal.known(i) for i in range(len(self._slots))),
            wide=None if reason else wide_range(self._truth, self._signal),
            half_noise=self._half_noise,
        )

    def _demand_variety(self) -> None:
        """No table may hold the answers to all inputs."""
        if self._truth.legacy:
            return
        found = variety(self._truth)
        if found.is_small:
            raise Refusal(
                f"of {found.drawn} inputs {found.repeated} repeat another, so that a program may "
                "keep all answers: draw them from more values"
            )

    def _demand_nothing_hidden(self) -> None:
        """Of weights from a seed, no constant may matter as soon as it is another one.

        Nor may attention weigh all alike: such weights can't be given more to choose. Nor may one
        have a structure that hides what other weights would show.
        """
        truth = self._truth
        if truth.by is not WeightsBy.SEED or truth.legacy:
            return
        gains = gains_of(truth.model, lambda: truth.natively(ADMISSION_SEEDS[0]))
        if max(gains.values(), default=1.0) > ALIKE_GAIN:
            raise Refusal(
                "attention starts with scores that are nearly alike, so that a program without "
                "them would look right"
            )
        padded = with_padding(truth.model)
        for name, parameter in truth.model.named_parameters():
            if not parameter.requires_grad or id(parameter) in padded:
                continue
            if structure := structure_of(parameter):
                raise Refusal(
                    f"{name} {structure} in every fresh model, so that a program that works for "
                    "such weights alone would look right"
                )
        for name, moved in moved_constants(truth.model, ADMISSION_SEEDS[0]):
            with moved:
                answer = truth.natively(ADMISSION_SEEDS[0])
            if not alike(answer, self._signal.native[0]):
                raise Refusal(
                    f"{name} starts as a constant, so that a program without it would look right"
                )

    def _mutant(self, name: str, answer: Leaves, what: str = "") -> Mutant:
        """A wrong answer to the first input, measured as a candidate's is."""
        off = [
            (
                self._signal.closely(answer, i)
                if name in CLOSELY
                else self._signal.error(answer, self._signal.wide[0], i)
            )
            if i in self._floats
            else unequal(answer[i], self._signal.wide[0][i].to(answer[i].device))
            for i in range(len(self._slots))
        ]
        seen = [off[i] for i in self._floats] or off
        shown = f"the mutant {name}" + (f" ({what})" if what else "")
        return Mutant(name=name, what=shown, off=tuple(off), error=max(seen))

    def _passes(self, mutant: Mutant, tier: Tier, limits: Sequence[Mapping[Tier, float]]) -> bool:
        """Whether a candidate that gave this answer would earn the tier."""
        return all(
            off <= (limits[i][tier] if i in self._floats else UNEQUAL * self._signal.moves[i])
            for i, off in enumerate(mutant.off)
        )

    def _is_wrong(self, mutant: Mutant, limits: Sequence[Mapping[Tier, float]]) -> bool:
        """Whether it is told from what is right: the strictest tier hangs on nothing fainter."""
        told = not self._passes(mutant, self._tiers()[0], limits)
        return told or mutant.name not in MAY_DO_NOTHING

    def _tiers(self) -> list[Tier]:
        """Those that the reference's own precision lets anyone tell apart."""
        if self._truth.native != "float32":
            return [Tier.HALF]
        return [t for t in Tier if self._truth.precision == FLOAT64 or t is not Tier.FP32]

    def _not_offered(self, tier: Tier) -> str:
        if self._truth.native != "float32":
            return f"the task is {self._truth.native} as it ships"
        return f"the reference has no float64 form that could tell tier {tier}"

    def _tighten(self, mutant: Mutant, limits: Sequence[dict[Tier, float]]) -> None:
        """End tiers below a mutant that passes, where what they are for stays far from their end.

        Only where a tier's own noise is known; half's is measured now, however slow that is.
        """
        leaf = max(self._floats, key=lambda i: mutant.off[i], default=None)
        for tier in (Tier.TF32, Tier.HALF):
            if leaf is None or not self._passes(mutant, tier, limits):
                continue
            noise = self._known.get(tier) or (
                self._signal.half_noise() if tier is Tier.HALF else {}
            )
            half = mutant.off[leaf] / 2
            if leaf in noise and half >= ROOM_K * max(noise[leaf], self._noise[leaf]):
                limits[leaf][tier] = half

    def _limits(self) -> list[dict[Tier, float]]:
        # A GPU is fast at bfloat16: what a task admits must not depend on a clock there.
        tried = self._truth.device.type == "cuda" or self._signal.cheap
        half = self._signal.half_noise() if tried else {}
        tf32 = self._signal.tf32_noise()
        self._known = {Tier.TF32: tf32, Tier.HALF: half}
        rounded = self._signal.rounded_noise()
        self._half_noise = max((*half.values(), *rounded.values()), default=0.0)
        limits: list[dict[Tier, float]] = []
        for i, slot in enumerate(self._slots):
            noises = [self._noise[i], *(x.get(i, 0.0) for x in (tf32, half, rounded))]
            own = {
                Tier.FP32: noises[0],
                Tier.TF32: max(noises[:2]),
                Tier.HALF: max(noises),
            }
            tiers = self._tiers() if i in self._floats else []
            ends = {t: limit(t, own[t], slot.count) for t in tiers}
            for tier, part in FINER.items():
                least = own_share(own[tier], slot.count)
                if tier in ends and half.get(i, 0.0) > least:
                    ends[tier] = min(ends[tier], max(least, half[i] * part))
            limits.append(ends)
            self._unrounded[i] = limit(Tier.HALF, max(noises[:-1]), slot.count)
        return limits

    def _cap(self, mutants: Sequence[Mutant], limits: Sequence[dict[Tier, float]]) -> None:
        """Have half end at CAP after all in outputs where a mutant is too near to what lies beyond.

        So it does in all where the reference is in half precision as it ships: it may be the truth
        itself. And in legacy tasks, whose authors have a rule of their own.
        """
        own = self._truth.native != "float32" or self._truth.legacy
        far = [{tier: TIMED_K * end for tier, end in leaf.items()} for leaf in limits]
        near = [m for m in mutants if self._passes(m, Tier.HALF, far)]
        for i in self._floats:
            if own or any(m.off[i] > CAP for m in near):
                limits[i][Tier.HALF] = min(limits[i][Tier.HALF], CAP)

    def _narrow(self, mutants: Sequence[Mutant], limits: Sequence[dict[Tier, float]]) -> None:
        """Have half end without regard to rounding in outputs where a mutant passes by that.

        Answers in bfloat16 may be beyond it there; those in float16 are eight times as fine.
        """
        if Tier.HALF not in self._tiers():
            return
        passing = [m for m in mutants if self._passes(m, Tier.HALF, limits)]
        for i in self._floats:
            if any(m.off[i] > self._unrounded[i] for m in passing):
                limits[i][Tier.HALF] = self._unrounded[i]

    def _mutants(self) -> tuple[list[Mutant], list[str]]:
        """Wrong answers, and the mutants that the task can't have."""
        first, second = self._signal.wide[0], self._signal.apart
        middle = [(a + b) / 2 for a, b in zip(first, second, strict=True)]
        found = [
            self._mutant("zeros", [torch.zeros_like(t) for t in first]),
            self._mutant("mean", middle),
            self._mutant("other_input", second),
        ]
        if len(self._slots) > 1:
            found += [alone for mutant in found for alone in _one_output_wrong(mutant)]
        on_gpu = self._truth.device.type == "cuda"
        asserted = on_gpu and asserts(self._truth, ADMISSION_SEEDS[0])
        edited = [] if asserted else self._without_layers()
        zeroed = zeroed_weights(self._truth.model)
        edited += [self._edited("weights_zeroed", zeroed)] if zeroed else []
        edited.append(self._edited(SCORES, flat_scores, "every attention score alike"))
        found += [mutant for mutant in edited if mutant is not None]
        if not self._truth.legacy:  # whose tasks may forget: they are as their authors left them
            found += self._returned()
            found += [
                self._mutant(UNREAD, answer, what)
                for what, answer in unread(
                    self._truth, self._signal.native[0], thorough=self._signal.cheap
                )
            ]
        names = {mutant.name for mutant in found}
        return found, [n for n in ("layer_skipped", "weights_zeroed") if n not in names]

    def _without_layers(self) -> list[Mutant | None]:
        call: Callable[[], object] = lambda: self._truth.natively(ADMISSION_SEEDS[0])  # noqa: E731
        model = self._truth.model
        edits: dict[str, Mapping[str, Edit]] = {
            "layer_skipped": layer_edits(model, call),
            PLAIN: plain_edits(model, call),
        }
        if not self._truth.legacy:
            edits[PART] = part_edits(model, call)
        if not self._truth.legacy and self._signal.cheap:
            edits[ADDEND] = addend_edits(
                call,
                (*model.parameters(), *model.buffers()),
                on_gpu=self._truth.device.type == "cuda",
            )
        return [
            self._edited(kind, edit, name)
            for kind, found in edits.items()
            for name, edit in found.items()
        ]

    def _returned(self) -> list[Mutant]:
        """An input as the answer, in each output of its shape, all others right."""
        given = views(self._truth.frame.input_slots, self._truth.pack(ADMISSION_SEEDS[0]))
        fitting = inputs_as_answers(given, {i: self._signal.wide[0][i] for i in self._floats})
        found = []
        for i, n in fitting[:MOST_RETURNED]:
            answer = [*self._signal.native[0]]
            answer[i] = given[n]
            found.append(self._mutant(RETURNED, answer, f"input {n} as output {i}"))
        return found

    def _edited(self, name: str, edit: Edit, what: str = "") -> Mutant | None:
        """The edited reference's answer; None where the edit changes nothing or nothing runs."""
        try:
            with edit():
                answer = self._truth.natively(ADMISSION_SEEDS[0])
        except torch.OutOfMemoryError:
            raise
        except Exception:  # without that layer the model does not run: no such mutant
            return None
        pairs = list(zip(answer, self._signal.native[0], strict=False))
        shapes = [(a.shape, b.shape) for a, b in pairs]
        if len(answer) != len(self._slots) or any(a != b for a, b in shapes):
            return None
        if alike(answer, self._signal.native[0]):
            return None
        if name not in FAINT and not self._signal.moves_with(edit, answer):
            return None
        return self._mutant(name, answer, what)

    def _unusable(
        self, ratio: float, kept: Mapping[Tier, float], inadmissible: Mapping[str, str]
    ) -> str:
        """Why errors can't be told from right answers; empty where they can."""
        noise = max(self._noise, default=0.0)
        if ratio <= MIN_SIGNAL:
            return (
                f"the output moves by {ratio:.1e} of its size with the input, under {MIN_SIGNAL:g}"
            )
        if self._truth.native == "float32" and noise >= MAX_NOISE:
            return f"float32 itself is off by {noise:.1e} of the signal, over {MAX_NOISE:.1e}"
        if kept:
            return ""
        why = "; ".join(f"{tier}: {text}" for tier, text in inadmissible.items())
        return f"wrong answers would pass at every tier ({why})"


def _one_output_wrong(mutant: Mutant) -> list[Mutant]:
    """The same wrong answer in one output at a time, all others right."""
    found = []
    for i, off in enumerate(mutant.off):
        if off > 0:
            alone = tuple(off if k == i else 0.0 for k in range(len(mutant.off)))
            what = f"{mutant.what} in output {i}"
            found.append(Mutant(name=mutant.name, what=what, off=alone, error=off))
    return found

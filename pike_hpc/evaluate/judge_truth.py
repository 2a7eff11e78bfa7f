"""The truth about one task: weights, float64 answers, and the reference as it ships.

One `Truth` stands for one task and one way of drawing weights. Small models stay on the device;
a large one is built there, answers what must be known, and is let go before anything is timed.
Knows no candidate and no clock.
"""

from __future__ import annotations

import enum
import functools
import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from pike_hpc.evaluate.buffers import SharedBuffer
from pike_hpc.evaluate.judge_constructor import differs_when_given, drawn_buffers
from pike_hpc.evaluate.judge_frame import agree, answer_leaves, describe_inputs, narrowest, pack
from pike_hpc.evaluate.judge_fresh import CALIBRATION_SEEDS, with_judging_weights
from pike_hpc.evaluate.judge_memory import bytes_of, views
from pike_hpc.evaluate.judge_other_weights import scramble
from pike_hpc.evaluate.judge_probe import Mixture, Probe, Weights, draw_bits, groups_of, mixed
from pike_hpc.evaluate.judge_room import give_back
from pike_hpc.evaluate.judge_secrets import Secrets
from pike_hpc.evaluate.judge_size import card_bytes, host_has_room, model_bytes
from pike_hpc.evaluate.judge_weights import (
    beside_state,
    demand_copy,
    on_device,
    settle,
    twin,
)
from pike_hpc.evaluate.judge_widen import WIDER, Choices, InDouble, Recording, default_dtype
from pike_hpc.evaluate.layout import buffer_bytes
from pike_hpc.evaluate.runner import STATE_BYTES, State, unflatten, watching
from pike_hpc.records import Variant
from pike_hpc.tasks.load import LEGACY_WEIGHT_SEED, LoadedTask, TaskRefused

RESIDENT_BYTES = 1 << 28
"""A model that holds more is built on the device, widened a layer at a time, and not kept there."""


KEPT_BYTES = 1 << 27
"""Answers larger than this are kept on the host: of a task's truths a device would hold three,
twice as wide, as long as the task is warm."""
NEAR_BYTES, NEAR_PART = 1 << 29, 1 / 64
"""Answers larger than this, and than this part of the device's memory, are compared on the host,
tens of times as slowly: of a candidate's own the judge holds a few while it marks them."""
DRAWS = 2
"""Inputs that are kept while a task is set up: an admission calls with the same two many times, and
a CPU draws 10^8 numbers a second."""

GIVEN = -1
"""In place of a seed: inputs that were drawn elsewhere."""

FLOAT64 = "float64"


class WeightsBy(enum.Enum):
    """How a candidate comes to its weights."""

    STATE = "state"
    """From the judge's state_dict: randomised constants, calibrated statistics."""
    SEED = "seed"
    """By constructing in the reference's order from the same seed: plain torch weights."""


class Truth:
    """The reference in float64, and as it stands."""

    def __init__(
        self, loaded: LoadedTask, by: WeightsBy, device: torch.device, secrets: Secrets
    ) -> None:
        self.by, self._loaded, self.device = by, loaded, device
        self.legacy = loaded.task.variant is Variant.LEGACY
        self.large = (model_bytes(loaded) or 0) > RESIDENT_BYTES
        # PIKE's weights come from the CPU's random stream, however long that takes.
        self.construct = device if self.large and not self.legacy else torch.device("cpu")
        self._seed = LEGACY_WEIGHT_SEED if self.legacy else secrets.seed("weights", by.value)
        self._probe_seed = secrets.seed("probe", by.value)
        self.range_seeds = tuple(secrets.seed("range", by.value, i) for i in range(2))
        """Of inputs that are nobody's exam."""
        self._mixture_seed = secrets.seed("mixture", by.value)
        self._checkpoint = loaded.state_dict() if by is WeightsBy.STATE else None
        self.calibrated = 0
        self.resets = False
        self._model: nn.Module | None = None
        self._state: State | None = None
        self._twin: nn.Module | None = None
        self._wide_device, self._widen_weights = device, not self.large
        self._draws_there = True
        self._near_bytes = max(NEAR_BYTES, NEAR_PART * card_bytes(device))
        self._drawn: dict[int, tuple[Any, list[Any]]] = {}
        """Tree and leaves of the inputs drawn last, by seed."""
        self._goes_on = False
        """Whether what a call left stays for the next, also where it is put back."""
        made: list[nn.Module] = []
        with watching(made.append):
            self._model = self._draw(self._seed)
        self.parameters = sum(p.numel() for p in self._model.parameters())
        self.frame, self._chooses = agree(loaded, self._model, made, CALIBRATION_SEEDS[0], device)
        self.weights = self._weights_of(self._model, self._seed)
        if self._differs_when_given():
            self.frame = replace(self.frame, layers=())
        self.native = narrowest((*self.frame.output_slots, *self.frame.weight_slots))
        self.precision = FLOAT64
        """Of `answers`; the native one where float64 is out of reach or would mislead."""
        self._try_float64()

    def pack(self, seed: int) -> torch.Tensor:
        """The bytes of the shared input buffer for the inputs of `seed`, on the host."""
        tree, leaves = self._inputs(seed)
        return self._packed(self._tree_of(tree, leaves), torch.device("cpu"))

    def pack_fresh(self, seed: int, count: int) -> list[torch.Tensor]:
        """The bytes for inputs that nobody needs the truth of: drawn on the device if they can be.

        Each from a secret seed of its own: whoever has seen some thousand numbers of a Mersenne
        twister, torch's on the CPU, Python's and NumPy's, can tell all that follow.
        """
        secrets = Secrets(seed.to_bytes(8, "big"))
        seeds = [secrets.seed("fresh", i) for i in range(count)]
        if self.device.type != "cpu" and self._draws_there:
            try:
                return self._draws(seeds, self.device)
            except TaskRefused:
                self._draws_there = False
        return self._draws(seeds, torch.device("cpu"))

    def _draws(self, seeds: Sequence[int], device: torch.device) -> list[torch.Tensor]:
        return self._loaded.draws(seeds, lambda x: self._packed(x, device), device)

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """An answer where those of a task are kept: on the device unless they are large."""
        return tensor.cpu() if self._answer_bytes > KEPT_BYTES else tensor

    def near(self, tensor: torch.Tensor) -> torch.Tensor:
        """An answer where it is quickly compared: on the device unless they are very large."""
        return tensor.cpu() if self._answer_bytes > self._near_bytes else tensor.to(self.device)

    @property
    def _answer_bytes(self) -> int:
        return sum(slot.size_bytes for slot in self.frame.output_slots)

    def paired(self, answers: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Answers each of which is compared with the one before it: every other one is near.

        So a pair is compared on the device, and half of what is kept lies on the host.
        """
        return [self.near(a) if i % 2 else a for i, a in enumerate(answers)]

    def answers(self, seed: int) -> list[torch.Tensor]:
        """Output leaves in the precision of the truth, where they were computed."""
        if self.precision != FLOAT64:
            return self.natively(seed)
        choices: Choices = []
        if self._chooses:
            with Recording() as run:
                self.natively(seed)
            choices = run.choices
        try:
            return self._widely(seed, choices)
        except torch.OutOfMemoryError:
            if self._goes_on:  # what the calls before have left is in the twin alone
                raise
            self._twin = None
            self.sweep()
            if self._wide_device.type == "cpu" or not host_has_room(self.model):
                raise
        self._wide_device = torch.device("cpu")
        return self._widely(seed, choices)

    def edited(
        self, edit: Callable[[], AbstractContextManager[None]], seed: int
    ) -> list[torch.Tensor]:
        """The same of a copy that is made and asked within an edit of the model.

        Raises ValueError where the copy is not as the edited model is, and what its copying raises.
        """
        self._twin, device = None, self._wide_device
        try:
            with edit():
                self._twin = twin(self.model, device, widen_weights=self._widen_weights)
                demand_copy(self.model, self._twin)
                return self.answers(seed)
        finally:
            self._twin, self._wide_device = None, device

    def answers_in_turn(self, seeds: Sequence[int]) -> list[list[torch.Tensor]]:
        """The same, each call after the ones before and what they left in the model.

        Nothing where the reference chooses among numbers, for its own arithmetic tells what it
        chooses of fresh models alone, or where it can't.
        """
        found: list[list[torch.Tensor]] = []
        try:
            for seed in () if self._chooses else seeds:
                found.append([self.keep(t) for t in self.answers(seed)])
                self._goes_on = True
        except Exception:  # no room, or what a forward does that knows no such numbers
            found.clear()
        finally:
            self._goes_on, self._twin = False, None
        return found

    def answers_to(self, packed: torch.Tensor, *, natively: bool = False) -> list[torch.Tensor]:
        """The same for the bytes of an input buffer on the host, as `pack_fresh` draws them."""
        self._drawn[GIVEN] = (self.frame.input_tree, views(self.frame.input_slots, packed))
        try:
            return self.natively(GIVEN) if natively else self.answers(GIVEN)
        finally:
            del self._drawn[GIVEN]

    def natively(self, seed: int) -> list[torch.Tensor]:
        """Output leaves of the reference as it ships, TF32 off, on the device."""
        model = self.model
        if not self._goes_on:
            self.put_back()
        return answer_leaves(model, self.arguments(seed, lambda t: t.to(self.device, copy=True)))

    def reset_between_calls(self) -> bool:
        """Put the model's state back before every call from now on; False where it can't be."""
        self.resets = True
        self.release()
        if State.size_bytes(self.model) > STATE_BYTES:
            self.resets, self._state = False, None
        return self.resets

    def hold_natively(self) -> None:
        """Take the reference's own arithmetic for the truth from now on."""
        self.precision, self._twin = self.native, None

    @functools.cached_property
    def probe(self) -> Probe:
        """Other weights, and what the reference answers under them."""
        seed = self._probe_seed ^ 1
        stale = [self.keep(t) for t in self.answers(seed)]
        kept, state = (None, None) if self.large else (self._model, self._state)
        reloads = self.by is WeightsBy.STATE and not self.legacy
        try:
            weights, truth = self._under_others(seed, turns=reloads)
        except Exception as error:  # a matrix, say, that must be positive definite
            if not reloads or isinstance(error, torch.OutOfMemoryError):
                raise
            self._model = None
            weights, truth = self._under_others(seed, turns=False)
        mixture = self._mixture(weights, seed) if reloads else None
        self._model, self._state, self._twin = kept, state, None
        self.sweep()
        return Probe(
            weights=weights, packed=self.pack(seed), truth=truth, stale=stale, mixture=mixture
        )

    def _under_others(self, seed: int, *, turns: bool) -> tuple[Weights, list[torch.Tensor]]:
        """The probe's weights, which the model holds, and its answer: finite if signs turn."""
        self._twin = None
        if self.by is WeightsBy.SEED or self.legacy:
            self.release()
            self._model = self._draw(self._probe_seed)
            constructor_seed = self._probe_seed
        else:
            # The constructor's seed stays: tensors outside the state_dict come from there.
            if not self.large:
                self._model = None  # built again: not every model can be copied
            make = functools.partial(self._loaded.make_model, device=self.construct)
            drawn = drawn_buffers(self.model, make, self._seed, self._probe_seed)
            scramble(self.model, self._probe_seed, drawn, turns=turns)
            settle(self.model)
            constructor_seed = self._seed
        self._state = State(self.model) if self.resets else None
        weights = self._weights_of(self.model, constructor_seed)
        try:
            truth = [self.keep(t) for t in self.answers(seed)]
            if turns and not all(bool(t.isfinite().all()) for t in truth):
                raise ValueError("not finite")
        except Exception:
            weights.buffer.close()
            raise
        return weights, truth

    def close(self) -> None:
        """Let go of everything, weights included."""
        self.release()
        self.weights.buffer.close()
        if "probe" in self.__dict__:
            self.probe.weights.buffer.close()

    def release(self) -> None:
        """Let go of the models; they are built again when they are needed."""
        self._model, self._state, self._twin = None, None, None
        self.forget_inputs()
        self.sweep()

    def forget_inputs(self) -> None:
        """Let go of inputs that were kept to be asked again."""
        self._drawn.clear()

    @property
    def model(self) -> nn.Module:
        """The reference as it ships, on the device. Not to be changed for good."""
        if self._model is None:
            self._model = self._fresh(self._seed)
            self._model.load_state_dict(self._judging_state())
            self._state = State(self._model) if self.resets else None
        return self._model

    def _mixture(self, other: Weights, seed: int) -> Mixture | None:
        """Have the model that holds the other weights take some of the judging ones.

        Args:
            other: weights of the probe.
            seed: of its input.
        """
        slots = self.frame.weight_slots
        own, others = (views(slots, bytes_of(w.buffer)) for w in (self.weights, other))
        held_now = self.model.state_dict(keep_vars=True)
        bits = draw_bits(groups_of(list(held_now.values()), own, others), self._mixture_seed)
        if bits is None:
            return None
        self.model.load_state_dict(dict(zip(held_now, mixed(bits, own, others), strict=True)))
        self._twin, self._state = None, State(self.model) if self.resets else None
        return Mixture(bits=bits, truth=[self.keep(t) for t in self.answers(seed)])

    def _fresh(self, seed: int) -> nn.Module:
        return on_device(self._loaded.make_model(seed, device=self.construct).eval(), self.device)

    def _again(self, called: nn.Module, seed: int) -> nn.Module:
        """The same weights in a model that nobody called: what one made of others is old."""
        model = self._fresh(seed)
        model.load_state_dict(called.state_dict())
        return model

    def _draw(self, seed: int) -> nn.Module:
        model = self._fresh(seed)
        if self.legacy or self.by is WeightsBy.SEED:
            return model
        if self._checkpoint is not None:
            model.load_state_dict(self._checkpoint, strict=True)
            return model
        to_device = functools.partial(torch.Tensor.to, device=self.device, copy=True)
        again = None if self.large else functools.partial(self._again, seed=seed)
        arguments = functools.partial(self.arguments, change=to_device)
        model, self.calibrated = with_judging_weights(model, seed, arguments, again)
        try:
            settle(model)
        except RuntimeError as error:
            raise TaskRefused(
                f"the model does not take its own state_dict: {error}",
                where=self._loaded.task.key,
            ) from error
        return model

    def _widely(self, seed: int, choices: Choices) -> list[torch.Tensor]:
        device = self._wide_device
        if self._twin is None or (self.resets and not self._goes_on):
            self._twin = None
            self.put_back()
            again = self.by is WeightsBy.STATE and not self.large and not self.resets
            fresh = functools.partial(self._again, self.model, self._seed) if again else None
            self._twin = twin(self.model, device, widen_weights=self._widen_weights, fresh=fresh)
        arguments = self.arguments(
            seed, lambda t: t.to(device, WIDER.get(t.dtype, t.dtype), copy=True)
        )
        chosen = [c.to(device) for c in choices]
        with default_dtype(torch.float64), InDouble(chosen):
            return [leaf.to(self.device) for leaf in answer_leaves(self._twin, arguments)]

    def _differs_when_given(self) -> bool:
        """Whether candidates must not be given the judging weights while they are constructed."""
        if not self.frame.layers:
            return False
        beside = [t.cpu() for t in beside_state(self.model)]
        if self.large:
            self.release()
        return differs_when_given(
            lambda: self._loaded.make_model(self._seed, device=self.construct),
            self.frame,
            self._judging_state(),
            beside,
            self.device,
            twice=not self.large,
        )

    def _judging_state(self) -> dict[str, torch.Tensor]:
        """What runners are told to load, by name."""
        names = (slot.name for slot in self.frame.weight_slots)
        weights = views(self.frame.weight_slots, bytes_of(self.weights.buffer))
        return dict(zip(names, weights, strict=True))

    def _try_float64(self) -> None:
        """Fall back to the native precision where float64 is out of reach."""
        for widen_weights in sorted({self._widen_weights, True}):
            self._widen_weights, self._twin = widen_weights, None
            try:
                self.answers(CALIBRATION_SEEDS[0])
                return
            except Exception:
                # No such kernel, bits read as integers, numpy inside, types compared, no room.
                self.sweep()
        self.hold_natively()

    def _packed(self, inputs: Sequence[Any], place: torch.device) -> torch.Tensor:
        return pack(self.frame, inputs, place, self._loaded.task.key)

    def arguments(self, seed: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        """Arguments of a call; `change` copies, since forward may write what it is given."""
        tree, leaves = self._inputs(seed)
        return self._tree_of(tree, [change(t) for t in leaves])

    def _inputs(self, seed: int) -> tuple[Any, list[Any]]:
        """Tree and leaves of the inputs of `seed`, on the host; not to be written."""
        if seed not in self._drawn:
            while len(self._drawn) >= DRAWS:
                del self._drawn[next(iter(self._drawn))]
            leaves: list[Any] = []
            tree = describe_inputs(self._loaded.inputs(seed), leaves)
            # Copies: a get_inputs may fill one tensor of its own again and again.
            self._drawn[seed] = (tree, [leaf.clone() for leaf in leaves])
        return self._drawn[seed]

    def _tree_of(self, tree: Any, leaves: list[Any]) -> Any:
        return unflatten(tree, leaves, self._loaded.namespace)

    def _weights_of(self, model: nn.Module, seed: int) -> Weights:
        slots = self.frame.weight_slots
        buffer = SharedBuffer("weights", buffer_bytes(slots), ours_alone=True)
        state = model.state_dict().values()
        for view, tensor in zip(views(slots, bytes_of(buffer)), state, strict=True):
            view.copy_(tensor)
        return Weights(constructor_seed=seed, buffer=buffer)

    def put_back(self) -> None:
        """Undo what calls have left in the model, where calls leave anything."""
        if self._state is not None:
            self._state.restore()

    def sweep(self) -> None:
        """Give back what nobody holds any more, where others may want it."""
        gc.collect()
        give_back(self.device)

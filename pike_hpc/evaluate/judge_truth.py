"""The truth about one task: weights, float64 answers, and whether errors can be told by them.

One `Truth` stands for one task and one way of drawing weights. It keeps a float64 twin of the
reference for as long as the task is judged; the float32 reference serves admission only. Knows no
candidate and no clock.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import functools
import hmac
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pike_hpc.evaluate.judge_link import Frame, views
from pike_hpc.evaluate.judge_weights import draw, in_double, on_device, scramble
from pike_hpc.evaluate.layout import FLOATS, Slot, buffer_bytes, describe, lay_out
from pike_hpc.records import Variant
from pike_hpc.tasks.load import LEGACY_WEIGHT_SEED, LoadedTask, TaskRefused

CALIBRATION_SEEDS = (101, 102)
"""Inputs that BatchNorm is calibrated with; public, since a task's digest fixes the procedure."""


class WeightsBy(enum.Enum):
    """How a candidate comes to its weights."""

    STATE = "state"
    """From the judge's state_dict: randomised constants, calibrated statistics."""
    SEED = "seed"
    """By constructing in the reference's order from the same seed: plain torch weights."""


class Secrets:
    """Seeds that nobody outside this process can know or repeat."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seed(self, *label: str | int) -> int:
        """63 bits for a label."""
        text = "/".join(str(part) for part in label).encode()
        return int.from_bytes(hmac.digest(self._key, text, "sha256")[:8], "big") >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """One set of weights, on the CPU."""

    constructor_seed: int
    tensors: tuple[torch.Tensor, ...]
    """In the order of the frame's weight slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One input under other weights: do a candidate's answers follow its weights?"""

    weights: Weights
    packed: torch.Tensor
    truth: list[torch.Tensor]
    """The float64 answer under these weights ..."""
    stale: list[torch.Tensor]
    """... and under the judging ones, which a program that kept them would give."""


class Truth:
    """The reference in float64, and as it stands for admission."""

    def __init__(
        self, loaded: LoadedTask, by: WeightsBy, device: torch.device, secrets: Secrets
    ) -> None:
        self.by, self._loaded, self.device = by, loaded, device
        self.legacy = loaded.task.variant is Variant.LEGACY
        seed = LEGACY_WEIGHT_SEED if self.legacy else secrets.seed("weights", by.value)
        self._calibration = [self._arguments(s) for s in CALIBRATION_SEEDS]
        self.model32 = self._draw(seed)
        self.frame = self._agree(self.model32.state_dict())
        self.weights = self._weights_of(self.model32, seed)
        self._probe_seed = secrets.seed("probe", by.value)
        self._model64: Callable[..., Any] = in_double(self.model32)
        self._narrow = False
        self.precision = self._reference_precision()

    def pack(self, seed: int) -> torch.Tensor:
        """The bytes of the shared input buffer for the inputs of `seed`."""
        leaves: list[Any] = []
        tree = _describe_inputs(self._arguments(seed), leaves)
        shapes = [(tuple(t.shape), _dtype(t)) for t in leaves]
        agreed = [(s.shape, s.dtype) for s in self.frame.input_slots]
        if tree != self.frame.input_tree or shapes != agreed:
            raise TaskRefused(
                "get_inputs gives other shapes or values at another seed",
                where=self._loaded.task.key,
            )
        raw = torch.zeros(buffer_bytes(self.frame.input_slots), dtype=torch.uint8)
        for view, leaf in zip(views(self.frame.input_slots, raw.numpy()), leaves, strict=True):
            view.copy_(leaf)
        return raw

    def answers(self, seed: int) -> list[torch.Tensor]:
        """Output leaves of the float64 reference, on the CPU."""
        return self._answers_of(self._model64, seed)

    @functools.cached_property
    def probe(self) -> Probe:
        """Other weights, and what the reference answers under them."""
        if self.by is WeightsBy.SEED or self.legacy:
            model = self._draw(self._probe_seed)
            weights = self._weights_of(model, self._probe_seed)
        else:
            # The constructor's seed stays: tensors outside the state_dict come from there.
            model = copy.deepcopy(self.model32)
            scramble(model, self._probe_seed)
            weights = self._weights_of(model, self.weights.constructor_seed)
        seed = self._probe_seed ^ 1
        twin = model if self._narrow else in_double(model)
        return Probe(
            weights=weights,
            packed=self.pack(seed),
            truth=self._answers_of(twin, seed),
            stale=self.answers(seed),
        )

    def answers32(self, seed: int, context: Any = None) -> list[torch.Tensor]:
        """Output leaves of the reference as it stands, strict float32 unless `context` says."""
        arguments = _each(self._arguments(seed), lambda t: t.to(self.device))
        with context or contextlib.nullcontext():
            return self.leaves(self.model32, arguments)

    @staticmethod
    def leaves(model: Callable[..., Any], arguments: Sequence[Any]) -> list[torch.Tensor]:
        """Output tensors of a call, on the CPU."""
        leaves: list[Any] = []
        with torch.inference_mode():
            _describe_outputs(model(*arguments), leaves)
            return [torch.as_tensor(leaf).cpu() for leaf in leaves]

    def _draw(self, seed: int) -> nn.Module:
        if self.legacy or self.by is WeightsBy.SEED:
            model = self._loaded.make_model(seed).eval()
        else:
            model = draw(self._loaded.make_model, seed, self._calibration)
        return on_device(model, self.device)

    def _weights_of(self, model: nn.Module, seed: int) -> Weights:
        state = model.state_dict().values()
        return Weights(
            constructor_seed=seed,
            tensors=tuple(t.detach().to("cpu", copy=True) for t in state),
        )

    def _answers_of(self, model: Callable[..., Any], seed: int) -> list[torch.Tensor]:
        arguments = _each(self._arguments(seed), self._widen)
        with _default_dtype(torch.float32 if self._narrow else torch.float64):
            return self.leaves(model, arguments)

    def _arguments(self, seed: int) -> list[Any]:
        return self._loaded.inputs(seed)

    def _widen(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.to(self.device, copy=True)
        if self._narrow:
            return tensor
        if tensor.is_complex():
            return tensor.to(torch.complex128)
        return tensor.double() if tensor.is_floating_point() else tensor

    def _agree(self, state: dict[str, torch.Tensor]) -> Frame:
        arguments: list[Any] = []
        outputs: list[Any] = []
        inputs = self._calibration[0]
        input_tree = _describe_inputs(inputs, arguments)
        with torch.inference_mode():
            answer = self.model32(*_each(inputs, lambda t: t.to(self.device, copy=True)))
        output_tree = _describe_outputs(answer, outputs)
        if not outputs:
            raise TaskRefused("forward returns no tensor", where=self._loaded.task.key)
        return Frame(
            input_tree=input_tree,
            input_slots=_slots([(str(i), t) for i, t in enumerate(arguments)]),
            output_tree=output_tree,
            output_slots=_slots([(str(i), torch.as_tensor(t)) for i, t in enumerate(outputs)]),
            weight_slots=_slots(list(state.items())),
        )

    def _reference_precision(self) -> str:
        """float64, unless the reference itself cannot do it or narrows on the way."""
        try:
            leaves = self.answers(CALIBRATION_SEEDS[0])
        except RuntimeError:
            self._model64, self._narrow = self.model32, True
            return "float32"
        wide = (torch.float64, torch.complex128)
        floats = [t for t in leaves if t.is_floating_point() or t.is_complex()]
        return "float64" if all(t.dtype in wide for t in floats) else "float32"


def is_float(slot: Slot) -> bool:
    """Whether a slot's values are compared by error rather than for equality."""
    return slot.dtype in FLOATS


def _slots(tensors: Sequence[tuple[str, torch.Tensor]]) -> tuple[Slot, ...]:
    try:
        return lay_out((name, _dtype(t), tuple(t.shape)) for name, t in tensors)
    except KeyError as error:
        raise TaskRefused(f"tensors of type {error} can't be shared with a runner") from None


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _describe_inputs(arguments: Sequence[Any], leaves: list[Any]) -> Any:
    return describe(list(arguments), torch.is_tensor, leaves, numbers_are_leaves=False)


def _describe_outputs(answer: Any, leaves: list[Any]) -> Any:
    return describe(answer, torch.is_tensor, leaves, numbers_are_leaves=True)


def _each(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same containers with every tensor changed."""
    if torch.is_tensor(value):
        return change(value)
    if isinstance(value, dict):
        return {k: _each(v, change) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_each(v, change) for v in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Tensors that a forward makes itself are as wide as its inputs."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)

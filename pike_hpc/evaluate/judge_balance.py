"""Weights under which units turn: of fresh ones most are on, or off, for whatever a task draws.

Before a ReLU a sum over hundreds of draws is seldom far from its mean, and without norms that mean
is anything: in the later layers of a plain stack most units never change sign, and whoever leaves
those out, or takes them as linear, answers right. Means of trained networks are nearer. So biases
are moved until each unit's mean is within a deviation or so, and a layer whose numbers have all but
vanished gets larger weights: Mishkin and Matas, "All you need is a good init", 2015, do that for
all layers.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from pike_hpc.evaluate.correctness import rms, rms_difference
from pike_hpc.evaluate.judge_operations import force_eager, is_dense, tensors_in
from pike_hpc.evaluate.judge_scores import without_fast_path
from pike_hpc.evaluate.judge_sharpen import as_it_was
from pike_hpc.evaluate.judge_units import QUIET, ROWS, STRAIGHT, Layer, Seen, change

FEWEST = 2
"""Draws that are looked at, of however many rows."""

AT_ONCE = 3
"""Rounds in which a layer that shows enough in one call is moved in it, before those behind it."""

ROUNDS = 64
"""Others are moved one in a round: what they are given depends on all before them."""

LOST = 0.5
"""Weights under which an answer depends on its input by so much less are not taken."""

_UNIT_AXIS = {
    "linear": -1,
    "addmm": -1,
    **{f"conv{n}d": -1 - n for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": -1 - n for n in (1, 2, 3)},
}
"""Products that add a bias, and which axis of what they give has one unit each."""

_BENDS = frozenset(
    {
        *("relu", "relu_", "relu6", "leaky_relu", "leaky_relu_", "prelu", "rrelu", "elu", "elu_"),
        *("selu", "selu_", "celu", "celu_", "gelu", "silu", "mish", "hardswish"),
    }
)
"""Functions that bend near zero, and are nearly linear beyond."""

_SMOOTH = frozenset({"elu", "elu_", "celu", "celu_", "gelu", "silu", "mish", "hardswish"})
"""Those of them that are nearly linear near zero as well."""

_BENDS_AT = {
    **dict.fromkeys(("clamp", "clamp_", "clamp_min", "clamp_min_", "clip", "clip_"), "min"),
    **dict.fromkeys(("hardtanh", "hardtanh_"), "min_val"),
    **dict.fromkeys(("threshold", "threshold_"), "threshold"),
}
"""Others, which bend where an argument says: its name."""

_SUMS = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__"})
_DIFFERENCES = frozenset({"sub", "sub_", "__sub__", "__isub__"})

_KEEPS = frozenset({"dropout", "dropout1d", "dropout2d", "dropout3d", "contiguous"})
"""Outside of training they give what they are given."""

_LARGEST = {f"max_pool{n}d": -1 - n for n in (1, 2, 3)}
"""What they give has more where all that they are given has; and their axis of channels."""


class _Units(TorchFunctionMode):
    """Follows what products with a bias give to where it bends."""

    def __init__(self, model: nn.Module, *, may_gain: bool) -> None:
        super().__init__()
        self.layers: dict[int, Layer] = {}
        """By where a bias is."""
        self.at_once = False
        """Whether layers are moved when they are met, before those that follow."""
        self.moved = False
        """Whether any was, since `begin`."""
        self._may_gain = may_gain
        self._learned = {_at(p): p for p in model.parameters() if p.requires_grad and _at(p)}
        self._user: dict[int, int] = {}
        """Of where a weight is: where the bias is that it is used with."""
        self._others: set[int] = set()
        """Where parameters are that something uses which is not followed."""
        self._from: MutableMapping[torch.Tensor, tuple[Layer, int, int]] = WeakTensorKeyDictionary()
        """Layer and axis of what a product gave, and its version: once written it is another."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if args and _bends(name, args, kwargs):
            self._met(args[0], STRAIGHT if name in _SMOOTH else QUIET)
        known: Sequence[tuple[Layer, int] | None] = [self._known(value) for value in args]
        made = func(*args, **kwargs)
        if not isinstance(made, torch.Tensor):
            return made
        if name in _UNIT_AXIS:
            self._product(name, made, args, kwargs)
            return made
        places = [_at(tensor) for tensor in tensors_in((args, kwargs))]
        used = [place for place in places if place in self._learned]
        if name in _SUMS and not kwargs and len(used) == 1 and self._found(used[0], made, -1):
            return made
        for place in used:
            self._use_otherwise(place)
        if name in _SUMS:
            known = [found for found in known if found][-1:]
        if known and known[0] and not (kwargs and name in _SUMS | _DIFFERENCES):
            self._follow(name, made, *known[0])
        return made

    def begin(self) -> None:
        """Let go of what was seen."""
        self.moved = False
        for layer in self.layers.values():
            layer.seen = None

    def end_call(self) -> None:
        """A call is over."""
        for layer in self.layers.values():
            layer.repeats |= layer.times > 1
            layer.times = 0

    @property
    def may_stay(self) -> bool:
        """Whether enough was seen of all layers, and all are as they should be."""
        seen = [layer for layer in self.layers.values() if layer.seen]
        return not any(layer.wanted() or layer.seen.rows < ROWS for layer in seen if layer.seen)

    @property
    def draws(self) -> int:
        """How many calls show enough of each unit; 0 where none was seen."""
        fewest = [layer.seen.fewest for layer in self.layers.values() if layer.seen]
        return max(FEWEST, math.ceil(ROWS / min(fewest))) if fewest else 0

    def move_first(self) -> bool:
        """Decide about the first layer, in the order of calls, that was off in these calls."""
        for layer in self.layers.values():
            if wanted := layer.wanted():
                layer.move(*wanted)
                return True
        return self.moved

    def _known(self, value: Any) -> tuple[Layer, int] | None:
        # What is made for inference alone does not tell when it is written.
        if not isinstance(value, torch.Tensor) or value not in self._from or value.is_inference():
            return None
        layer, axis, version = self._from[value]
        return (layer, axis) if version == value._version else None

    def _use_otherwise(self, place: int) -> None:
        """A parameter is used by something that is not followed."""
        if place in self._others:
            return
        self._others.add(place)
        for layer in (self.layers.get(place), self.layers.get(self._user.get(place, 0))):
            if layer:
                layer.stays |= layer is self.layers.get(place)
                layer.may_gain = False
                if layer.shift is not None:
                    raise _UsedAgain

    def _product(self, name: str, made: torch.Tensor, args: Any, kwargs: Any) -> None:
        names = ("bias", "input", "weight") if name == "addmm" else ("input", "weight", "bias")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        weight, bias, source = (_at(given.get(n)) for n in ("weight", "bias", "input"))
        if weight in self._learned and self._user.setdefault(weight, bias) != bias:
            self._use_otherwise(weight)
        if source in self._learned:
            self._use_otherwise(source)
        if bias in self._learned:
            if {"alpha", "beta"}.isdisjoint(kwargs):
                self._found(bias, made, _UNIT_AXIS[name], weight)
            else:
                self._use_otherwise(bias)

    def _found(self, bias: int, made: torch.Tensor, axis: int, weight: int = 0) -> bool:
        """Whether this is what a bias gives to, one number a unit: it is made as it is to be."""
        own = self._learned[bias]
        one_each = own.dim() == 1 and made.dim() >= -axis and made.shape[axis] == own.numel()
        if not one_each or not made.numel() or not made.is_floating_point():
            return False
        layer = self.layers.get(bias)
        if layer is None:
            layer = self.layers[bias] = Layer(
                bias=own,
                weight=self._learned.get(weight),
                may_gain=self._may_gain and weight in self._learned and weight not in self._others,
                stays=bias in self._others,
            )
        if layer.weight is not self._learned.get(weight):
            self._use_otherwise(bias)
            return False
        if layer.gain != 1.0 and not layer.may_gain:
            raise _UsedAgain
        layer.times += 1
        change(made, axis, layer.gain, layer.shift)
        self._from[made] = layer, axis, _version(made)
        return True

    def _follow(self, name: str, made: torch.Tensor, layer: Layer, axis: int) -> None:
        """What was made of what a layer gave is known where it has more where that has."""
        adds = name in _SUMS or name in _DIFFERENCES
        if not adds and name not in _KEEPS and _LARGEST.get(name) != axis:
            return
        if adds:
            layer.may_gain = False
        if made.dim() >= -axis and made.shape[axis] == layer.bias.numel():
            self._from[made] = layer, axis, _version(made)

    def _met(self, numbers: Any, quiet: float) -> None:
        """What is about to bend, and under which deviation it would hardly do so."""
        if not (known := self._known(numbers)):
            return
        layer, axis = known
        layer.quiet = max(quiet, layer.quiet)
        seen = Seen.of(numbers, axis)
        layer.seen = seen if layer.seen is None else layer.seen.with_(seen)
        if self.at_once and layer.at_once and (wanted := layer.wanted()):
            layer.move(*wanted)
            self.moved = True
            change(numbers, axis, *wanted)
            self._from[numbers] = layer, axis, _version(numbers)


class _OwnStatistics(TorchFunctionMode):
    """Inside, BatchNorms normalise by what they are given, as they will once they are calibrated.

    What they were calibrated with is that of other weights while these are being changed.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is nn.functional.batch_norm and len(args) > 2 and _rows(args[0]) > 1:
            given = dict(
                zip(("weight", "bias", "training", "momentum", "eps"), args[3:], strict=False)
            )
            kwargs = {**given, **kwargs, "training": True}
            args = (args[0], None, None)
        return func(*args, **kwargs)


class _UsedAgain(Exception):
    """Parameters about which something was decided turn out not to be one layer's alone."""


def balance_units(model: nn.Module, call: Callable[[int], Any]) -> int:
    """Move biases, and make weights larger, so that units turn before what bends.

    Args:
        model: in eval mode.
        call: calls it with the n-th of as many draws as are asked for.

    Returns:
        How many layers were changed; 0 where the model would not stand it, or can't be followed.
    """

    def calls(draws: int) -> Iterator[Any]:
        for number in range(draws):
            with as_it_was(model):
                yield call(number)

    try:
        with torch.no_grad(), without_fast_path(), force_eager(), _OwnStatistics():
            for may_gain in (True, False):
                layers = _decided(_Units(model, may_gain=may_gain), calls)
                if not layers and layers is not None:
                    return 0
                if layers and _stands(layers, lambda: _signals(calls(FEWEST))):
                    return len(layers)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # what a forward does that knows no such mode, or answers of another kind
        return 0
    return 0


def _decided(units: _Units, calls: Callable[[int], Iterator[Any]]) -> list[Layer] | None:
    """The layers to which anything is to happen; None where that can't be known."""

    def look(draws: int) -> None:
        for _ in calls(draws):
            units.end_call()

    try:
        with units:
            look(1)
            draws = 0 if units.may_stay else units.draws
            for number in range(ROUNDS if draws else 0):
                units.begin()
                units.at_once = number < AT_ONCE
                look(draws)
                if not units.move_first():
                    break
    except _UsedAgain:
        return None
    return [layer for layer in units.layers.values() if layer.shift is not None]


def _stands(layers: Sequence[Layer], look: Callable[[], list[tuple[int, float]]]) -> bool:
    """Give parameters what was decided; not where answers then depend less on their inputs."""
    before = look()
    with contextlib.ExitStack() as undo:
        for layer in layers:
            layer.settle(undo)
        for (numbers, signal), (numbers_now, signal_now) in zip(before, look(), strict=True):
            if numbers_now < numbers or not LOST * signal <= signal_now < math.inf:
                return False
        undo.pop_all()
    return True


def _signals(answers: Iterator[Any]) -> list[tuple[int, float]]:
    """Of each leaf of two answers: how many finite numbers both have, and the signal of those."""
    one, other = ([t.detach().clone() for t in tensors_in(answer)] for answer in answers)
    found = []
    for pair in zip(one, other, strict=True):
        if not pair[0].is_floating_point():
            continue
        finite = pair[0].isfinite() & pair[1].isfinite()
        first, second = (torch.where(finite, t, 0.0) for t in pair)
        size = max(rms(first), rms(second))
        found.append((int(finite.sum()), rms_difference(first, second) / size if size else 0.0))
    return found


def _rows(channels: torch.Tensor) -> int:
    """Numbers of each channel."""
    return channels.numel() // max(1, channels.shape[1]) if channels.dim() > 1 else 0


def _at(value: Any) -> int:
    """Where a dense tensor is; 0 for anything else."""
    return value.data_ptr() if isinstance(value, torch.Tensor) and is_dense(value) else 0


def _version(tensor: torch.Tensor) -> int:
    """Another one after each write; what is made for inference alone has none."""
    return 0 if tensor.is_inference() else tensor._version


def _bends(name: str, args: Any, kwargs: Any) -> bool:
    """Whether it is a function that bends near zero."""
    if name not in _BENDS_AT:
        return name in _BENDS
    where = args[1] if len(args) > 1 else kwargs.get(_BENDS_AT[name])
    return isinstance(where, int | float) and where == 0

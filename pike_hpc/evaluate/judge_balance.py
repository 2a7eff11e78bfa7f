"""Weights under which units turn: of fresh ones most are on, or off, for whatever a task draws.

Before a ReLU a sum over hundreds of draws is seldom far from its mean, and without norms that mean
is anything: in the later layers of a plain stack most units never change sign, and whoever leaves
those out, or takes them as linear, answers right. Means of trained networks are nearer. So biases
are moved until each unit's mean is within a deviation or so, and a layer whose numbers have all but
vanished gets larger weights: Mishkin and Matas, "All you need is a good init", 2015, do that for
all layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from pike_hpc.evaluate.judge_operations import force_eager
from pike_hpc.evaluate.judge_scores import without_fast_path
from pike_hpc.evaluate.judge_sharpen import as_it_was

FAR, NEAR = 1.5, 1.0
"""Deviations that a unit's mean may be off, and that it is moved to where it is further: one in
fifteen turns there, and one in six here."""

QUIET = 0.1
"""A layer whose units deviate by less gets weights for a deviation of one: plain layers have 0.58
of what the one before them had, and float16 sees nothing of the twentieth."""

ROWS = 16
"""Numbers of a unit that its mean and deviation are known from, at least."""

FEWEST = 2
"""Draws that are looked at, of however many rows."""

ROUNDS = 16
"""A layer of few rows is known when all before it are: plain stacks of as many layers are done."""

STILL = 1e-2
"""Units that deviate by less of their mean are those of a constant, or made of rounding."""

CHANNEL = {
    "linear": -1,
    "addmm": -1,
    **{f"conv{n}d": -1 - n for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": -1 - n for n in (1, 2, 3)},
}
"""Products that add a bias, and which axis of what they give has one unit each."""

_BENDS = frozenset(
    {
        *("relu", "relu_", "relu6", "leaky_relu", "leaky_relu_", "prelu", "rrelu", "threshold"),
        *("clamp", "clamp_", "clamp_min", "clamp_min_", "hardtanh", "hardtanh_", "elu", "elu_"),
        *("selu", "selu_", "celu", "celu_", "gelu", "silu", "mish", "hardswish"),
    }
)
"""Functions that are nearly linear on one side, or both."""

_CLAMPS = frozenset({"clamp", "clamp_", "clamp_min", "clamp_min_"})

_SUMS = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__"})

_KEEPS = frozenset(
    {
        *("dropout", "dropout1d", "dropout2d", "dropout3d", "contiguous"),
        *(f"max_pool{n}d" for n in (1, 2, 3)),
        *(f"avg_pool{n}d" for n in (1, 2, 3)),
    }
)
"""What adds a constant to all that it gives where one is added to all that it is given."""


@dataclass(slots=True)
class _Seen:
    """Mean and variance of each unit over calls, merged as Chan, Golub and LeVeque do (1979)."""

    rows: int
    fewest: int
    mean: torch.Tensor
    squares: torch.Tensor

    @classmethod
    def of(cls, numbers: torch.Tensor, axis: int) -> _Seen:
        """What one call shows."""
        others = [n for n in range(numbers.dim()) if n != axis % numbers.dim()]
        rows = numbers.numel() // numbers.shape[axis]
        variance, mean = torch.var_mean(numbers.float(), dim=others, correction=0)
        return cls(rows, rows, mean.double(), rows * variance.double())

    def with_(self, other: _Seen) -> _Seen:
        """What both show."""
        rows, off = self.rows + other.rows, other.mean - self.mean
        return _Seen(
            rows,
            min(self.fewest, other.fewest),
            self.mean + off * (other.rows / rows),
            self.squares + other.squares + off.square() * (self.rows * other.rows / rows),
        )


@dataclass(slots=True, eq=False)
class _Layer:
    """A product with a bias, and what is to become of its parameters."""

    bias: nn.Parameter
    weight: nn.Parameter | None
    """None where it must stay: others use it, too."""
    gain: float = 1.0
    shift: torch.Tensor | None = None
    """Taken off, by unit, after the gain."""
    direct: bool = True
    """Whether nothing else is added before it bends."""
    seen: _Seen | None = None
    """Since it was last decided what becomes of it."""

    def wanted(self, *, may_gain: bool = True) -> tuple[float, torch.Tensor] | None:
        """Gain, and what is to be taken off after it, by what was seen; None where neither is."""
        seen = self.seen
        if seen is None or seen.rows < ROWS:
            return None
        mean, deviation = seen.mean, (seen.squares / seen.rows).sqrt()
        alive = mean.isfinite() & deviation.isfinite() & (deviation > STILL * mean.abs())
        if not bool(alive.any()):
            return None
        off = alive & (mean.abs() > FAR * deviation)
        usual = float(deviation[alive].square().mean().sqrt())
        gain = 1.0
        if may_gain and self.direct and self.weight is not None and usual < QUIET:
            gain = 2.0 ** round(-math.log2(usual))  # a power of two: nothing is rounded
        if gain == 1.0 and not bool(off.any()):
            return None
        return gain, gain * torch.where(off, mean - NEAR * deviation * mean.sign(), 0.0)

    def move(self, gain: float, shift: torch.Tensor) -> None:
        """Decide on that, after what was decided before."""
        self.gain *= gain
        self.shift = shift if self.shift is None else gain * self.shift + shift

    def settle(self) -> None:
        """Give the parameters what has been decided."""
        if self.weight is not None:
            self.weight.mul_(self.gain)
        if self.shift is not None:
            self.bias.mul_(self.gain).sub_(self.shift.to(self.bias))


class _Units(TorchFunctionMode):
    """Follows what products with a bias give to where it bends."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.layers: dict[int, _Layer] = {}
        """By the id of a bias."""
        self.at_once = False
        """Whether a layer is moved when it is met, before those that follow."""
        self._learned = {id(p): p for p in model.parameters() if p.requires_grad}
        self._user: dict[int, int] = {}
        """Of a weight: the bias that it is used with."""
        self._from: MutableMapping[torch.Tensor, tuple[_Layer, int]] = WeakTensorKeyDictionary()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _BENDS and args and _bends(name, args, kwargs):
            self._met(args[0])
        made = func(*args, **kwargs)
        if not isinstance(made, torch.Tensor):
            return made
        if name in CHANNEL:
            self._product(name, made, args, kwargs)
        elif name in _SUMS and not kwargs:
            self._sum(made, args)
        elif name in _KEEPS and args and self._knows(args[0]):
            self._from[made] = self._from[args[0]]
        elif self._knows(made):  # written in place: it is something else now
            del self._from[made]
        return made

    def forget(self) -> None:
        """Let go of what was seen."""
        for layer in self.layers.values():
            layer.seen = None

    @property
    def may_stay(self) -> bool:
        """Whether enough was seen of all layers, and all are as they should be."""
        layers = [layer for layer in self.layers.values() if layer.seen]
        return self.draws <= FEWEST and not any(layer.wanted() for layer in layers)

    def move(self) -> bool:
        """Decide by what calls have shown since the last time. Whether anything is to move."""
        any_moved = louder = False
        for layer in self.layers.values():  # in the order of calls: what comes later hears the rest
            if moved := layer.wanted(may_gain=not louder):
                layer.move(*moved)
                any_moved, louder = True, louder or moved[0] != 1.0
        return any_moved

    @property
    def draws(self) -> int:
        """How many calls show enough of each unit; 0 where none was seen."""
        fewest = [layer.seen.fewest for layer in self.layers.values() if layer.seen]
        return max(FEWEST, math.ceil(ROWS / min(fewest))) if fewest else 0

    def _knows(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value in self._from

    def _product(self, name: str, made: torch.Tensor, args: Any, kwargs: Any) -> None:
        names = ("bias", "input", "weight") if name == "addmm" else ("input", "weight", "bias")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        bias, weight = given.get("bias"), given.get("weight")
        others = self._user.setdefault(id(weight), id(bias)) != id(bias)
        if others and (layer := self.layers.get(self._user[id(weight)])):
            layer.weight = None
        scaled = not {"alpha", "beta"}.isdisjoint(kwargs)
        if bias is None or id(bias) not in self._learned or scaled:
            return
        layer = self._found(bias, made, CHANNEL[name], self._learned.get(id(weight)))
        if layer and (others or weight is not layer.weight):
            layer.weight = None

    def _sum(self, made: torch.Tensor, terms: Any) -> None:
        for term in terms:
            if id(term) in self._learned and self._found(term, made, -1, None):
                return
        known = [self._from[term] for term in terms if self._knows(term)]
        if known:
            layer, axis = known[-1]
            layer.direct = False
            if made.dim() >= -axis and made.shape[axis] == layer.bias.numel():
                self._from[made] = layer, axis

    def _found(
        self, bias: torch.Tensor, made: torch.Tensor, axis: int, weight: nn.Parameter | None
    ) -> _Layer | None:
        """The layer that gave this, as it is to be; None where there is not one number a unit."""
        one_each = bias.dim() == 1 and made.shape[axis] == bias.numel() > 0
        if not one_each or not made.numel() or not made.is_floating_point():
            return None
        new = _Layer(bias=self._learned[id(bias)], weight=weight)
        layer = self.layers.setdefault(id(bias), new)
        _change(made, axis, layer.gain, layer.shift)
        self._from[made] = layer, axis
        return layer

    def _met(self, numbers: Any) -> None:
        """What is about to bend."""
        if not self._knows(numbers):
            return
        layer, axis = self._from[numbers]
        seen = _Seen.of(numbers, axis)
        layer.seen = seen if layer.seen is None else layer.seen.with_(seen)
        if self.at_once and (moved := layer.wanted()):
            layer.move(*moved)
            layer.seen = None
            _change(numbers, axis, *moved)


def balance_units(model: nn.Module, call: Callable[[int], Any]) -> int:
    """Move biases, and make weights larger, so that units turn before what bends.

    Args:
        model: in eval mode.
        call: calls it with the n-th of as many draws as are asked for.

    Returns:
        How many layers were changed; 0 where the model would not stand it, or can't be followed.
    """
    units = _Units(model)
    answers: list[Any] = []

    def look(draws: int) -> None:
        for number in range(draws):
            with as_it_was(model):
                answers[:] = [call(number)]

    try:
        with torch.no_grad(), without_fast_path(), force_eager(), units:
            look(1)
            if not units.draws or units.may_stay:
                return 0
            draws, units.at_once = units.draws, True
            units.forget()
            look(1)
            units.at_once = False
            for _ in range(ROUNDS):
                units.forget()
                look(draws)
                if not units.move():
                    break
    except torch.OutOfMemoryError:
        raise
    except Exception:  # what a forward does that knows no such mode
        return 0
    moved = [layer for layer in units.layers.values() if layer.shift is not None]
    leaves = [t for t in tree_leaves(answers) if isinstance(t, torch.Tensor)]
    if not all(bool(t.isfinite().all()) for t in leaves):
        return 0
    with torch.no_grad():
        for layer in moved:
            layer.settle()
    return len(moved)


def _change(numbers: torch.Tensor, axis: int, gain: float, shift: torch.Tensor | None) -> None:
    """What a layer gave, as if its parameters were others."""
    if gain != 1.0:
        numbers.mul_(gain)
    if shift is not None:
        sides = [1] * numbers.dim()
        sides[axis] = -1
        numbers.sub_(shift.view(sides).to(numbers))


def _bends(name: str, args: Any, kwargs: Any) -> bool:
    """Whether it does so at zero, as far as it is one that need not."""
    if name not in _CLAMPS:
        return True
    low = args[1] if len(args) > 1 else kwargs.get("min")
    return isinstance(low, int | float) and low == 0

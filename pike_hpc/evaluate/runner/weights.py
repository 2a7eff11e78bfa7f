"""Where the judge's weights go in a program that is built otherwise than the reference.

First while it is constructed: torch's own layers are given their weights as soon as they exist, in
the order in which the reference makes such layers. What a constructor folds, packs or transposes
is then made of the right numbers, and needs no place of its own: it is told from what a constructor
draws anew by constructing twice, of other weights. Afterwards by name, then by shape and order. All
of this may be wrong, which an exam shows: it tells no secret and earns nothing.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .drawn import DRAWING, Drawn, head
from .places import (
    Placement,
    Slot,
    fits,
    is_exact,
    is_lazy,
    is_plain,
    place_alike,
    place_by_end,
    place_by_spelling,
    place_layers,
    shaped,
    share,
    statistic,
)

LAYERS: dict[type[nn.Module], str] = {
    nn.Linear: "reset_parameters",
    nn.Bilinear: "reset_parameters",
    nn.Embedding: "reset_parameters",
    nn.EmbeddingBag: "reset_parameters",
    nn.LayerNorm: "reset_parameters",
    nn.RMSNorm: "reset_parameters",
    nn.GroupNorm: "reset_parameters",
    nn.PReLU: "reset_parameters",
    nn.modules.batchnorm._NormBase: "reset_parameters",
    nn.modules.conv._ConvNd: "reset_parameters",
    nn.RNNBase: "reset_parameters",
    nn.RNNCellBase: "reset_parameters",
    nn.MultiheadAttention: "_reset_parameters",
}
"""torch's layers that have weights, and what their constructors call when these exist."""

_CALLS = "num_batches_tracked"
"""Buffer of a norm that counts its calls in training."""

Twin = Mapping[str, Any]
"""State of a program that was constructed of other weights, inside `unwritten`."""

Signature = tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]
"""Kind of a layer, and its own tensors' names and shapes."""


def layers_made(model: nn.Module, made: Sequence[nn.Module]) -> list[tuple[str, list[str]]]:
    """Kind and weights' names of the layers of `model`, in the order of `made` (see `watching`)."""
    prefixes = {id(module): name for name, module in model.named_modules()}
    found = []
    for layer in {id(layer): layer for layer in made}.values():  # some are reset again
        prefix = prefixes.get(id(layer))
        own = _own(layer)
        if prefix is not None and own:
            found.append((_kind(layer), [f"{prefix}.{n}" if prefix else n for n in own]))
    return found


@contextlib.contextmanager
def watching(
    tell: Callable[[nn.Module], None],
    drawing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> Iterator[None]:
    """Inside, `tell` is called with each layer of torch as soon as it has its first weights.

    `drawing` is entered while a layer draws them.
    """
    kept = {layer: getattr(layer, name) for layer, name in LAYERS.items()}

    def told(reset: Callable[[Any], None]) -> Callable[[Any], None]:
        def reset_and_tell(layer: Any) -> None:
            with drawing():
                reset(layer)
            tell(layer)

        return reset_and_tell

    try:
        for layer, reset in kept.items():
            setattr(layer, LAYERS[layer], told(reset))
        yield
    finally:
        for layer, reset in kept.items():
            setattr(layer, LAYERS[layer], reset)


class Hands:
    """Gives each layer that a constructor makes the weights of the reference's next such layer."""

    def __init__(
        self,
        slots: Sequence[Slot],
        layers: Sequence[tuple[str, Sequence[int]]],
        weights: Sequence[torch.Tensor],
    ) -> None:
        """Nothing is given yet.

        Args:
            slots: the reference's weights.
            layers: kinds and slots of its layers, as they are made.
            weights: one for each slot.
        """
        self._slots, self._weights = slots, weights
        self._waiting: dict[Signature, list[Sequence[int]]] = {}
        for kind, indices in layers:
            own = tuple((slots[i].leaf, slots[i].shape) for i in indices)
            self._waiting.setdefault((kind, own), []).append(indices)
        self._layers: dict[int, tuple[nn.Module, Sequence[int]]] = {}
        self._given: dict[int, tuple[torch.Tensor, int]] = {}
        """By address; what was given is kept, so that no address is met twice but by what was
        given other memory since."""
        self._gone: set[int] = set()
        """Weights that were given."""
        self._drawn = Drawn(slots, layers, weights)
        self._layer_draws = False
        """Whether what is drawn now is a layer's, which is given its weights afterwards."""

    @contextlib.contextmanager
    def giving(self) -> Iterator[None]:
        """Inside, layers are given weights, which functions of `torch.nn.init` then leave alone.

        These draw their random numbers all the same: what else a constructor draws stays what the
        seed makes it. Whoever writes otherwise, as `weight.data.normal_()` does, is heard: `place`
        puts that right.
        """
        names = [n for n in vars(nn.init) if n.endswith("_") and not n.startswith("_")]
        kept = {n: f for n in names if callable(f := getattr(nn.init, n))}
        try:
            for name, initialiser in kept.items():
                setattr(nn.init, name, self._sparing(initialiser, draws=name in DRAWING))
            with watching(self._give, self._drawing):
                yield
        finally:
            for name, initialiser in kept.items():
                setattr(nn.init, name, initialiser)

    def place(self, own: Mapping[str, Any], twin: Callable[[], Twin | None]) -> Placement | None:
        """Places for the weights in a program's state; None where that can't be right.

        Args:
            own: its `state_dict(keep_vars=True)`, as the constructor left it. What is no
                dense tensor there, as in quantized layers, has no place.
            twin: constructs the program once more, of other weights; None where it can't. Asked
                only where something that was given weights, or has one's name, holds other numbers,
                or where something with a name of its own may have been made of weights.
        """
        tensors = {n: t for n, t in own.items() if is_plain(t)}
        by_name = self._by_name(tensors)
        by_order, kept = self._by_order(tensors, by_name)
        made = self._made(tensors, by_name, by_order, kept, twin)
        places, freed = _names_first(by_name, by_order)
        places = {n: i for n, i in places.items() if n not in made}
        if self._is_the_reference(own, by_name, places):
            return Placement(slots=places, by_name=True, lasting=True)
        gone = self._gone - set(kept.values()) - freed
        share(places, tensors)
        once: dict[int, str] = {}
        for name, tensor in tensors.items():
            if name not in made and name not in places:
                once.setdefault(id(tensor), name)
        place_alike({n: tensors[n] for n in once.values()}, self._slots, gone, places)
        share(places, tensors)
        orphans = [n for n, t in tensors.items() if isinstance(t, nn.Parameter) and n not in places]
        unused = set(range(len(self._slots))) - self._gone - set(places.values())
        if orphans and any(self._slots[i].is_parameter for i in unused):
            return None
        whole = len(tensors) == len(own)
        placed = {*places.values(), *freed}  # a bias that the program has no use for is freed
        lasting = whole and not orphans and not made and self._has_all(placed)
        return Placement(slots=places, by_name=False, lasting=lasting)

    def _by_name(self, own: Mapping[str, torch.Tensor]) -> dict[str, int]:
        """What has a weight's name and room for it, the end of one's, or its place in a layer."""
        slots = self._slots
        named = {slot.name: i for i, slot in enumerate(slots)}
        alike = {n: named[n] for n in own if n in named}
        places = {n: i for n, i in alike.items() if fits(own[n], slots[i])}
        place_by_end(own, slots, places)
        place_by_spelling(own, slots, places)
        layers = {i for i in self._gone if i not in self._drawn}
        loose = {n: t for n, t in own.items() if self._given_as(t) not in layers}
        place_layers(loose, slots, layers, places)
        return places

    def _by_order(
        self, own: Mapping[str, torch.Tensor], by_name: Collection[str]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Weights that were given while the program was made, by the names that hold them.

        Those of its layers, of what layers hold in their stead and of copies; and those that took
        the numbers of what it drew itself, which is a guess: they wait for a place like others.
        """
        given = {n: at for n, t in own.items() if (at := self._given_as(t)) is not None}
        kept = self._drawn.kept(own)
        kept |= {n: at for n, at in given.items() if at in self._drawn and n in by_name}
        given = {n: at for n, at in given.items() if at not in self._drawn}
        settled = {*by_name, *given}
        given |= self._copies({n: t for n, t in own.items() if n not in settled})
        return self._held(own) | given, kept

    def _is_the_reference(
        self, own: Mapping[str, Any], by_name: Mapping[str, int], places: Mapping[str, int]
    ) -> bool:
        """Whether all names and shapes are the reference's, and nothing says otherwise."""
        named = {slot.name: i for i, slot in enumerate(self._slots)}
        exact = all(is_exact(own[n], self._slots[i]) for n, i in by_name.items())
        return exact and own.keys() == named.keys() and places == named

    def _held(self, own: Mapping[str, torch.Tensor]) -> dict[str, int]:
        """What stands in a layer that was given weights, in other memory than that was.

        Or in one that had no memory yet when it was made: `torch.nn.utils.skip_init`.
        """
        known: dict[int, int] = {}
        for layer, indices in self._layers.values():
            held = {**layer._parameters, **layer._buffers}
            for index in indices:
                tensor = held.get(self._slots[index].leaf)
                if tensor is not None and is_exact(tensor, self._slots[index]):
                    known[id(tensor)] = index
        return {name: known[id(t)] for name, t in own.items() if id(t) in known}

    def _copies(self, own: Mapping[str, torch.Tensor]) -> dict[str, int]:
        """What holds the numbers of a weight that was given to a layer, and of no other.

        Such as a clone that a program keeps in the layer's stead: it can follow other weights.
        """
        copied: dict[str, int] = {}
        for name, tensor in own.items():
            if is_lazy(tensor) or not (isinstance(tensor, nn.Parameter) or statistic(name)):
                continue
            first = head(tensor)
            alike = [i for i in self._gone if fits(tensor, self._slots[i])]
            alike = [i for i in alike if torch.equal(first, head(self._weights[i]).to(first))]
            equal = [i for i in alike if i not in self._drawn and self._is_still(tensor, i)]
            if len(equal) == 1:
                copied[name] = equal[0]
        return copied

    def _made(
        self,
        own: Mapping[str, torch.Tensor],
        named: Mapping[str, int],
        given: Mapping[str, int],
        kept: Collection[str],
        twin: Callable[[], Twin | None],
    ) -> set[str]:
        """What a constructor made of weights: it must keep what it has. Nothing of `kept`."""
        if not self._given:
            return set()
        known = {id(own[name]) for name in {*named, *given}}
        doubtful = {
            name
            for name, index in {**named, **given}.items()
            if not is_lazy(own[name]) and not self._is_still(own[name], index)
        }
        doubtful |= {
            name
            for name, tensor in own.items()
            if id(tensor) not in known
            and not is_lazy(tensor)
            and (isinstance(tensor, nn.Parameter) or statistic(name))
        }
        doubtful -= set(kept)
        if doubtful:
            called = self._called()
            doubtful -= {name for name in doubtful if id(own[name]) in called}
        if not doubtful:
            return set()
        other = twin()
        if other is None:
            changed = {n for n in doubtful - named.keys() if given.get(n) in self._gone}
            return changed | {n for n in doubtful if self._given_as(own[n]) is not None}
        made = {name for name in doubtful if _differs(own[name], other.get(name))}
        shared = {id(own[name]) for name in made}
        return {name for name, tensor in own.items() if id(tensor) in shared}

    def _called(self) -> set[int]:
        """Statistics of norms that a constructor called in training, by id.

        To warm up, or to see a shape: such numbers are made of no weights, and what it left in the
        norm is nothing that it means to keep.
        """
        found: set[int] = set()
        for layer, indices in self._layers.values():
            calls = layer._buffers.get(_CALLS)
            index = next((i for i in indices if self._slots[i].leaf == _CALLS), None)
            if calls is None or calls.is_meta or index is None:
                continue
            if bool(calls.cpu() > self._weights[index].cpu()):
                found |= {id(t) for t in layer._buffers.values()}
        return found

    def _has_all(self, placed: Collection[int]) -> bool:
        """Whether each weight that was given has a place, or is tied to one that has."""
        return all(
            i in placed
            or self._slots[i].leaf == _CALLS  # which nothing reads outside of training
            or any(torch.equal(self._weights[i], self._weights[j]) for j in placed)
            for i in self._gone
        )

    def _give(self, layer: nn.Module) -> None:
        own = _own(layer)
        known = self._layers.get(id(layer))
        if known is None:
            alike = self._waiting.get((_kind(layer), tuple((n, tuple(own[n].shape)) for n in own)))
            if not alike:
                return
            known = self._layers[id(layer)] = layer, alike.pop(0)
        if any(t.is_meta for t in own.values()):  # its memory comes later: see `_held`
            return
        with torch.no_grad():
            for tensor, index in zip(own.values(), known[1], strict=True):
                tensor.copy_(self._weights[index])
                self._given[tensor.data_ptr()] = tensor, index
                self._gone.add(index)
        for part in layer.children():  # torch's attention sets a bias to zero past `nn.init`
            if id(part) in self._layers:
                self._give(part)

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[None]:
        outer, self._layer_draws = self._layer_draws, True
        try:
            yield
        finally:
            self._layer_draws = outer

    def _sparing(self, initialiser: Callable[..., Any], *, draws: bool) -> Callable[..., Any]:
        def draw_only(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
            index = self._given_as(tensor)
            drawn = initialiser(tensor, *args, **options)
            if index is None and draws and not self._layer_draws:
                index = self._drawn.take(tensor, self._gone)
                if index is not None:
                    self._given[tensor.data_ptr()] = tensor, index
                    self._gone.add(index)
            if index is not None:
                with torch.no_grad():
                    tensor.copy_(shaped(self._weights[index], tensor))
            return drawn

        return draw_only

    def _given_as(self, tensor: torch.Tensor) -> int | None:
        if is_lazy(tensor) or not tensor.numel():
            return None
        known = self._given.get(tensor.data_ptr())
        if known is None or known[0].data_ptr() != tensor.data_ptr():
            return None
        first = known[0]
        alike = first.shape == tensor.shape and first.stride() == tensor.stride()
        whole = first.is_contiguous() and tensor.is_contiguous() and first.nbytes == tensor.nbytes
        return known[1] if first.dtype == tensor.dtype and (alike or whole) else None

    def _is_still(self, tensor: torch.Tensor, index: int) -> bool:
        """Whether it holds its weight's numbers."""
        weight = shaped(self._weights[index], tensor)
        return torch.equal(tensor.detach(), weight.to(tensor))


@contextlib.contextmanager
def unwritten() -> Iterator[None]:
    """Inside, memory that nobody wrote holds NaN, or the largest integer, in each new tensor."""
    strict = torch.are_deterministic_algorithms_enabled()
    warn = torch.is_deterministic_algorithms_warn_only_enabled()
    try:  # torch.utils.deterministic.fill_uninitialized_memory is True unless told otherwise
        torch.use_deterministic_algorithms(True, warn_only=True)
        yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=warn)


def _names_first(
    by_name: Mapping[str, int], by_order: Mapping[str, int]
) -> tuple[dict[str, int], set[int]]:
    """Both, and which weights are free again.

    Where names tell otherwise than the order did, others wait for what is left by them.
    """
    moved = {n: i for n, i in by_name.items() if by_order.get(n, i) != i}
    wanted = set(moved.values())
    waiting = {n for n, i in by_order.items() if n not in by_name and i in wanted}
    left = {n: i for n, i in by_order.items() if n not in waiting}
    return left | dict(by_name), {by_order[n] for n in moved}


def _differs(tensor: torch.Tensor, other: Any) -> bool:
    """Whether two constructions wrote other numbers: `other` is of one inside `unwritten`."""
    if not is_plain(other) or other.shape != tensor.shape:
        return True
    if other.is_floating_point() or other.is_complex():
        unset = other.isnan()
    else:
        unset = other if other.dtype is torch.bool else other == torch.iinfo(other.dtype).max
    return not (bool(unset.all()) or torch.equal(tensor.detach(), other.detach().to(tensor)))


def _kind(layer: nn.Module) -> str:
    return next(kind.__name__ for kind in LAYERS if isinstance(layer, kind))


def _own(layer: nn.Module) -> dict[str, torch.Tensor]:
    """A layer's own tensors that a state_dict would hold; empty where they have no shape yet."""
    held = itertools.chain(
        layer._parameters.items(),
        ((n, t) for n, t in layer._buffers.items() if n not in layer._non_persistent_buffers_set),
    )
    own = {name: tensor for name, tensor in held if tensor is not None}
    return {} if any(is_lazy(t) for t in own.values()) else own

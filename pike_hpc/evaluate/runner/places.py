"""Which weight of the reference goes where in a program that is built otherwise: by name and shape.

What is decided by likeness is a guess, which an exam shows to be right or wrong.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

STATISTICS = {"running_mean": ("mean",), "running_var": ("var", "variance")}
"""Buffers of norms, and how their names end in norms that people write themselves."""

_NORM = re.compile(
    r"(^|[._])(ln|lnf|bn|gn|norm|rms|layer_?norm|batch_?norm|group_?norm|gamma|beta)(?![a-z])"
)
_LAST = re.compile(r"(lnf|(ln|norm)_f(inal)?|final_\w*norm|last_\w*norm)(_?[a-z]+)?$")
_KINDS = {
    "gain": re.compile(r"(^|[._\d])(weight|w|gamma|scale|gain|g)[_\d]*$"),
    "shift": re.compile(r"(^|[._\d])(bias|b|beta|shift)[_\d]*$"),
    "of the input": re.compile(r"(^|[._]|[wb])ih(?![a-z])"),
    "of what it remembers": re.compile(r"(^|[._]|[wb])hh(?![a-z])"),
}
"""What names of people's own say that a parameter is."""


_LAYERS_BIAS = re.compile(
    r"^b$|(lin|fc|conv|proj|gemm|matmul|dense|weight|^w)[a-z_]*?_?b(ias)?\d*$"
)
"""What people call a bias that a layer adds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One weight of the reference."""

    name: str
    shape: tuple[int, ...]
    floating: bool
    is_parameter: bool

    @property
    def leaf(self) -> str:
        """Its name within its layer."""
        return leaf_of(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which weight goes where in a program."""

    slots: Mapping[str, int]
    """By the program's own names."""
    by_name: bool
    """Every name and shape is the reference's: nothing was guessed."""
    lasting: bool
    """Other weights can be put in the same places: none lives on only in what was made of it."""


def slots_of(
    names: Sequence[str], weights: Sequence[torch.Tensor], parameters: Collection[int]
) -> list[Slot]:
    """The reference's weights as they are told apart; `parameters` says which are no buffers."""
    return [
        Slot(
            name=name,
            shape=tuple(weight.shape),
            floating=weight.is_floating_point(),
            is_parameter=i in parameters,
        )
        for i, (name, weight) in enumerate(zip(names, weights, strict=True))
    ]


def leaf_of(name: str) -> str:
    """The last part of a name."""
    return name.rsplit(".", 1)[-1]


def statistic(name: str) -> str:
    """Which statistic of a norm a buffer's name says it is; empty for any other."""
    leaf = leaf_of(name).rstrip("_0123456789")
    return next((kind for kind, ends in STATISTICS.items() if leaf.endswith(ends)), "")


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether its shape comes with its weights."""
    return bool(nn.parameter.is_lazy(tensor))


def is_plain(value: Any) -> bool:
    """Whether it is a dense tensor: quantized layers hold others."""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def is_exact(tensor: torch.Tensor, slot: Slot) -> bool:
    """Whether a tensor has the shape and the kind of number of a weight."""
    if is_lazy(tensor):
        return isinstance(tensor, nn.Parameter) is slot.is_parameter
    return (tuple(tensor.shape), tensor.is_floating_point()) == (slot.shape, slot.floating)


def fits(tensor: torch.Tensor, slot: Slot) -> bool:
    """Whether it can hold a weight's numbers in their order."""
    if is_lazy(tensor) or is_exact(tensor, slot):
        return is_exact(tensor, slot)
    mine, floating = tuple(tensor.shape), tensor.is_floating_point()
    rows = _rows(mine) is not None and _rows(mine) == _rows(slot.shape)
    flat = len(mine) == 1 and mine[0] == math.prod(slot.shape)
    return floating == slot.floating and (rows or flat or _bare(mine) == _bare(slot.shape))


def shaped(weight: torch.Tensor, place: Any) -> torch.Tensor:
    """A weight in the shape of its place."""
    lazy = not isinstance(place, torch.Tensor) or is_lazy(place)
    if lazy or place.shape == weight.shape or place.numel() != weight.numel():
        return weight
    return weight.reshape(place.shape)


def place_by_end(
    own: Mapping[str, torch.Tensor], slots: Sequence[Slot], places: dict[str, int]
) -> None:
    """Add to `places`: two of one shape, where one's name ends with the other's and no other does.

    Such as `bn1.weight` and `block.bn1.weight`: who builds a model of the same parts, with fewer
    walls or more, says so by names. Of a name at least a layer's and its tensor's must be there.
    Of a size they say nothing where others count on, `conv2` and `conv3` for `conv1` and `conv2` in
    a block: such a program numbers its layers its own way, and order is the better guess.
    """
    seen, taken = set(places), set(places.values())
    found: dict[str, int] = {}
    waiting: dict[str, list[int]] = {}
    for i, slot in enumerate(slots):
        waiting.setdefault(_last_two(slot.name), []).append(i)
    pairs: dict[int, list[tuple[str, int]]] = {}
    for name, tensor in own.items():
        for i in waiting.get(_last_two(name), ()):
            if _is_end(name, slots[i].name) and is_exact(tensor, slots[i]):
                shared = min(name.count("."), slots[i].name.count("."))
                pairs.setdefault(shared, []).append((name, i))
    for shared in sorted(pairs, reverse=True):  # what shares more of its name comes first
        left = [(name, i) for name, i in pairs[shared] if name not in seen and i not in taken]
        names, indices = Counter(name for name, _ in left), Counter(i for _, i in left)
        found.update((name, i) for name, i in left if names[name] == indices[i] == 1)
        seen.update(names)
        taken.update(indices)
    others = {_series(n, t) for n, t in own.items() if n not in places and n not in found}
    own_way = {_series(n, own[n])[1:] for n in found if _series(n, own[n]) in others}
    places.update((n, i) for n, i in found.items() if _series(n, own[n])[1:] not in own_way)


def place_by_spelling(
    own: Mapping[str, torch.Tensor], slots: Sequence[Slot], places: dict[str, int]
) -> None:
    """Add to `places`: all parameters that are left, whose names have underscores for dots.

    A `ParameterDict` takes no dots: `all.blocks_0_wq_weight` for `blocks.0.wq.weight`. All of them
    or none, each the whole name of one that no other has: what fits by chance leaves some over.
    """
    taken = set(places.values())
    left = {
        name: tensor
        for name, tensor in own.items()
        if name not in places and isinstance(tensor, nn.Parameter)
    }
    found: dict[str, int] = {}
    for name, tensor in left.items():
        ends = {
            i: len(slot.name)
            for i, slot in enumerate(slots)
            if i not in taken
            and is_exact(tensor, slot)
            and f"_{_spelled(name)}".endswith(f"_{_spelled(slot.name)}")
        }
        longest = [i for i, length in ends.items() if length == max(ends.values())]
        if len(longest) == 1:
            found[name] = longest[0]
    if len(found) == len(left) == len(set(found.values())):
        places.update(found)


def place_layers(
    own: Mapping[str, torch.Tensor],
    slots: Sequence[Slot],
    gone: Collection[int],
    places: dict[str, int],
) -> None:
    """Set in `places`: a matrix and the bias that follows it, as the weights of one layer.

    Of who writes layers out: in `weight, bias, extra_bias` the second is what its layer adds, also
    where the reference has a `bias` of its own beside that layer, unless another may be a layer's:
    one that comes first, or says so. For names without dots, where no other matrix has that shape
    and as many such pairs wait as there are layers like them.

    Args:
        own: the program's tensors that are none of a layer of torch, in order.
        slots: the reference's weights.
        gone: those that went to layers.
        places: what is known so far.
    """
    named = {slot.name: i for i, slot in enumerate(slots)}
    taken = set(gone) | {i for name, i in places.items() if "." in slots[i].name}
    layers: dict[Any, list[tuple[int, int]]] = {}
    for weight, slot in enumerate(slots):
        layer, _, leaf = slot.name.rpartition(".")
        bias = named.get(f"{layer}.bias")
        if leaf == "weight" and len(slot.shape) > 1 and bias is not None:
            layers.setdefault((slot.shape, slots[bias].shape), []).append((weight, bias))
    bare = {n: t for n, t in own.items() if "." not in n and not is_lazy(t)}
    asking: dict[Any, list[tuple[str, str]]] = {}
    for pair in itertools.pairwise(bare):
        sizes = tuple(tuple(bare[name].shape) for name in pair)
        known = pair[0] in places or (pair[1] in places and pair[1] != "bias")
        if sizes in layers and _role(pair[1]) == (False, "shift") and not known:
            asking.setdefault(sizes, []).append(pair)
    for sizes, pairs in asking.items():
        waiting = [both for both in layers[sizes] if not taken & {*both}]
        matrices = [n for n, t in bare.items() if tuple(t.shape) == sizes[0]]
        whole = len(pairs) == len(waiting) and [matrix for matrix, _ in pairs] == matrices
        spelled = {_spelled(slots[bias].name) for _, bias in waiting}
        if whole and not _may_be_of_layers(bare, pairs, places, spelled):
            for names, both in zip(pairs, waiting, strict=True):
                places.update(zip(names, both, strict=True))


def _may_be_of_layers(
    own: Mapping[str, torch.Tensor],
    pairs: Sequence[tuple[str, str]],
    places: Mapping[str, int],
    spelled: Collection[str],
) -> bool:
    """Whether a `bias` is in a pair, and others without a place may be what that layer adds.

    Those that come first, are `spelled` as the bias of a layer, or say so otherwise.
    """
    paired = {name for pair in pairs for name in pair}
    if not paired & places.keys():
        return False
    first = list(own).index(pairs[0][0])
    size = own[pairs[0][1]].numel()
    return any(
        k < first or name in spelled or bool(_LAYERS_BIAS.search(name.lower()))
        for k, (name, tensor) in enumerate(own.items())
        if name not in paired and name not in places and tensor.numel() == size
    )


def place_alike(
    own: Mapping[str, torch.Tensor],
    slots: Sequence[Slot],
    gone: Collection[int],
    places: dict[str, int],
) -> None:
    """Add to `places`: the k-th of what is alike to the k-th, by ever looser likeness.

    A buffer under a name of its own is more likely the program's own than any weight, but for the
    statistics of a norm. A matrix may be a convolution's weight, a row any weight, and a shape that
    is not known yet any other: these are placed only where as many wait as there are places. So
    are tensors by what their names say: a role or the last part; a `bias` may be a norm's or not.

    Args:
        own: the program's tensors.
        slots: the reference's weights.
        gone: those that went elsewhere.
        places: what is known so far.
    """

    def waiting(alike: Iterable[Any]) -> list[Any]:
        taken = set(gone) | set(places.values())
        return [None if i in taken else key for i, key in enumerate(alike)]

    def add(alike: Iterable[Any], tensors: Mapping[str, Any], *, even: bool = False) -> None:
        _add(waiting(alike), tensors, places, even)

    learned, counted = partial(_learned, own), partial(_counted, own)
    # What a program holds itself comes before its blocks, whatever it is for.
    own = dict(sorted(own.items(), key=lambda item: _is_last(item[0])))
    known = {n: t for n, t in own.items() if not is_lazy(t)}
    sizes = {n: (tuple(t.shape), t.is_floating_point()) for n, t in known.items()}
    bare = {n: (_bare(shape), floating) for n, (shape, floating) in sizes.items()}
    rows = {n: (_rows(shape), floating) for n, (shape, floating) in sizes.items()}
    late = {n: (leaf_of(n), isinstance(t, nn.Parameter)) for n, t in own.items() if n not in known}
    leaves = [(s.leaf, (s.shape, s.floating)) for s in slots]
    roles = {n: (_role(n), size) for n, size in learned(sizes).items()}
    said = [(_role(s.name), (s.shape, s.floating)) if s.is_parameter else None for s in slots]
    add(said, {n: key for n, key in roles.items() if _of_norm(key[0])}, even=True)
    add(leaves, _with_leaf(sizes), even=True)
    vague = _vague(waiting(said), [key for n, key in roles.items() if n not in places])
    add(said, {n: key for n, key in roles.items() if key[0] and key[1] not in vague}, even=True)
    add([(s.shape, s.floating) if s.is_parameter else None for s in slots], learned(sizes))
    add([(s.shape, s.floating) for s in slots], learned(sizes))
    add(leaves, counted(sizes))
    add(leaves, _with_leaf(sizes))
    spare = [(_bare(s.shape), s.floating) if s.is_parameter else None for s in slots]
    add(zip((s.leaf for s in slots), spare, strict=True), _with_leaf(learned(bare)))
    add(spare, learned(bare))
    add([(s.leaf, (_bare(s.shape), s.floating)) for s in slots], counted(bare))
    matrices = [(_rows(s.shape), s.floating) if s.is_parameter else None for s in slots]
    add(matrices, {n: key for n, key in learned(rows).items() if key[0]}, even=True)
    flat = {n: (t.numel(), sizes[n][1]) for n, t in known.items() if t.dim() == 1}
    counts = [(math.prod(s.shape), s.floating) if s.is_parameter else None for s in slots]
    add(counts, learned(flat), even=True)
    add([(s.leaf, s.is_parameter) for s in slots], late, even=True)


def _learned(own: Mapping[str, Any], of: Mapping[str, Any]) -> dict[str, Any]:
    return {n: key for n, key in of.items() if isinstance(own[n], nn.Parameter)}


def _counted(own: Mapping[str, Any], of: Mapping[str, Any]) -> dict[str, Any]:
    rest = {n: key for n, key in of.items() if not isinstance(own[n], nn.Parameter)}
    return {n: (kind, key) for n, key in rest.items() if (kind := statistic(n))}


def _add(
    alike: Sequence[Any], tensors: Mapping[str, Any], places: dict[str, int], even: bool
) -> None:
    """Place tensors in slots that are equal here; None is like nothing."""
    waiting: dict[Any, list[int]] = {}
    for i, key in enumerate(alike):
        if key is not None:
            waiting.setdefault(key, []).append(i)
    asking: dict[Any, list[str]] = {}
    for name, key in tensors.items():
        if name not in places and key in waiting:
            asking.setdefault(key, []).append(name)
    for key, names in asking.items():
        if not even or len(names) == len(waiting[key]):
            places.update(zip(names, waiting[key], strict=False))


def share(places: dict[str, int], tensors: Mapping[str, torch.Tensor]) -> None:
    """Give a tensor's other names the place that one of them has."""
    known = {id(tensors[name]): index for name, index in places.items()}
    for name, tensor in tensors.items():
        if id(tensor) in known:
            places.setdefault(name, known[id(tensor)])


def _role(name: str) -> tuple[bool, str] | None:
    """Whether a name says that it is of a norm, and what it is there or elsewhere."""
    kind = next((k for k, pattern in _KINDS.items() if pattern.search(name.lower())), "")
    return (bool(_NORM.search(name.lower())), kind) if kind else None


def _is_last(name: str) -> bool:
    """Whether it is held by the program itself, for the norm behind all its blocks."""
    return bool(_LAST.match(name.lower()))


def _of_norm(role: tuple[bool, str] | None) -> bool:
    return role is not None and role[0]


def _vague(waiting: Iterable[Any], asking: Iterable[Any]) -> set[Any]:
    """Of which sizes weights of norms wait, and parameters ask whose names say nothing.

    There the others may be a norm's as well, though their names don't say so.
    """
    norms = {key[1] for key in waiting if key is not None and _of_norm(key[0])}
    return norms & {size for role, size in asking if role is None}


def _with_leaf(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {name: (leaf_of(name), key) for name, key in keys.items()}


def _series(name: str, tensor: torch.Tensor) -> tuple[str, tuple[int, ...] | None]:
    """A name without its numbers, and the size of what has it."""
    return re.sub(r"\d+", "", name), None if is_lazy(tensor) else tuple(tensor.shape)


def _last_two(name: str) -> str:
    """The names of a tensor and of its layer."""
    return ".".join(name.split(".")[-2:])


def _spelled(name: str) -> str:
    """As a name is written where dots are forbidden."""
    return name.replace(".", "_")


def _is_end(one: str, other: str) -> bool:
    """Whether a whole name ends the other; one that begins with a layer's number says little."""
    short, long = sorted((one, other), key=len)
    return "." in short and not short[0].isdigit() and f".{long}".endswith(f".{short}")


def _bare(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape without its sides of one: such tensors hold equal numbers in one order."""
    return tuple(side for side in shape if side != 1)


def _rows(shape: Sequence[int]) -> tuple[int, int] | None:
    """Rows and numbers of what may be a convolution's weight, or the matrix that it is."""
    return (shape[0], math.prod(shape)) if len(shape) > 1 else None

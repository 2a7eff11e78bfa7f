"""Wrong versions of a model that must fail: a layer left out, a hundredth of the weights zeroed.

A layer is what a person would count: a block of a list or sequence of blocks, else a module with
parameters of its own. Experts that share the work of one layer are one layer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

MOST_LAYERS = 24
"""Of a deeper model that many, evenly spread, the first and the last among them."""

MOST_PLAIN = 12
"""Of modules without parameters, likewise."""

LEAST_SHARE = 0.05
"""Of the bytes that modules read and write; what they compute counts for nothing here."""

FUSED = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.PReLU,
    nn.RReLU,
    nn.ELU,
    nn.SELU,
    nn.CELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Sigmoid,
    nn.LogSigmoid,
    nn.Tanh,
    nn.Hardtanh,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Softplus,
    nn.Softsign,
    nn.Threshold,
)
"""What is done number by number costs nothing behind the layer before it: to leave out one of many
saves no time, and all of them are left out together."""

ZEROED_STRIDE = 97
"""Every so many weights one is zeroed: about 1 %, never in step with a power of two."""

Edit = Callable[[], AbstractContextManager[None]]


@dataclass(slots=True)
class Layer:
    """One or more modules that make one layer, as a run of the model saw them."""

    name: str
    modules: list[nn.Module]
    list_name: str = ""
    """Of the list that holds it; a list may hold experts."""
    sizes: list[int] = field(default_factory=list)
    """Elements of the first input of each call."""

    @property
    def shapes(self) -> list[list[torch.Size]]:
        """Parameter shapes of each module."""
        return [[p.shape for p in m.parameters()] for m in self.modules]


def layer_edits(model: nn.Module, call: Callable[[], object]) -> dict[str, Edit]:
    """Contexts in which a layer is left out, by its name, in the model's order.

    A layer's place is taken by its input where that has the output's shape (`blocks.1`), and by
    nothing (`blocks.1 = 0`): of `x + layer(x)` the second is the milder wrong version. Of a deep
    model MOST_LAYERS are tried.

    Args:
        model: with its weights.
        call: runs it once, to see which layers take part.
    """
    layers = _watched(model, call)
    tops = [module for layer in layers for module in layer.modules]
    called = {id(module) for top in tops for module in top.modules()}
    found: list[dict[str, Edit]] = [
        {
            layer.name: skipping(layer.modules, through=True),
            f"{layer.name} = 0": skipping(layer.modules, through=False),
        }
        for layer in layers
    ]
    for name, module in model.named_modules():
        if id(module) not in called:
            own = module.named_parameters(prefix=name, recurse=False)
            found += [{f"{path} = 0": _zeroing([parameter], 1)} for path, parameter in own]
    return {name: edit for edits in spread(found, MOST_LAYERS) for name, edit in edits.items()}


def plain_edits(model: nn.Module, call: Callable[[], object]) -> dict[str, Edit]:
    """Contexts in which modules without parameters let their inputs through, by name or kind.

    Only those that give another tensor of their input's shape: activations, norms and pools with a
    stride of one. A module is left out alone where it moves LEAST_SHARE of what the model's modules
    move and is none of FUSED, and all of a kind (`every SiLU`) where they move so much together:
    who saves less gains nothing that a timing would show. Of many that are tried alone MOST_PLAIN
    are. Arguments as of `layer_edits`.
    """
    moved: dict[str, int] = {}
    """Bytes of inputs and outputs, by name."""
    plain: dict[str, nn.Module] = {}

    def note(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            tensors = [value for value in (*args[:1], output) if torch.is_tensor(value)]
            moved[name] = moved.get(name, 0) + sum(t.numel() * t.element_size() for t in tensors)
            learned = any(True for _ in module.parameters())
            # Dropout gives what it was given.
            if len(tensors) > 1 and not learned and _changes(*tensors):
                plain[name] = module

        return hook

    leaves = [(n, m) for n, m in model.named_modules() if n and not any(True for _ in m.children())]
    with hooked((m, note(name)) for name, m in leaves):
        call()
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    least = LEAST_SHARE * (weights + sum(moved.values()))
    kinds: dict[str, list[str]] = {}
    for name in (name for name, _ in leaves if name in plain):
        kinds.setdefault(type(plain[name]).__name__, []).append(name)
    together = {
        f"every {kind}": skipping([plain[name] for name in names], through=True)
        for kind, names in kinds.items()
        if sum(moved[name] for name in names) >= least
        and (len(names) > 1 or isinstance(plain[names[0]], FUSED))
    }
    alone = [
        {name: skipping([plain[name]], through=True)}
        for name, _ in leaves
        if name in plain and moved[name] >= least and not isinstance(plain[name], FUSED)
    ]
    tried = spread(alone, MOST_PLAIN)
    return together | {name: edit for edits in tried for name, edit in edits.items()}


def zeroed_weights(model: nn.Module) -> Edit | None:
    """A context in which one in a hundred weights is zero; None for a model without weights."""
    weights = [p for p in model.parameters() if p.is_floating_point() or p.is_complex()]
    return _zeroing(weights, ZEROED_STRIDE) if weights else None


def all_layers(module: nn.Module, prefix: str = "") -> Iterator[Layer]:
    """The layers of a model, of one module each, also those that no call uses."""
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        if isinstance(child, nn.ModuleList | nn.ModuleDict | nn.Sequential):
            list_name = "" if isinstance(child, nn.Sequential) else path
            for own, block in child.named_children():
                if isinstance(block, nn.ModuleList | nn.ModuleDict | nn.Sequential):
                    yield from all_layers(block, f"{path}.{own}.")
                elif any(True for _ in block.parameters()):
                    yield Layer(f"{path}.{own}", [block], list_name)
        elif any(True for _ in child.parameters(recurse=False)) and not _holds_blocks(child):
            yield Layer(path, [child])
        else:
            yield from all_layers(child, f"{path}.")


def _holds_blocks(module: nn.Module) -> bool:
    """Whether it is a network of its own, such as an encoder that knows positions beside blocks."""
    lists = nn.ModuleList, nn.ModuleDict, nn.Sequential
    return any(isinstance(part, lists) for part in module.modules() if part is not module)


def _watched(model: nn.Module, call: Callable[[], object]) -> list[Layer]:
    """The layers that a call uses; experts of one layer are one."""
    layers = list(all_layers(model))

    def note(layer: Layer) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            first = next((a for a in tree_leaves((args, kwargs)) if torch.is_tensor(a)), None)
            layer.sizes.append(0 if first is None else first.numel())

        return hook  # type: ignore[return-value]

    with hooked(((layer.modules[0], note(layer)) for layer in layers), with_kwargs=True):
        call()
    groups: dict[str, list[Layer]] = {}
    for layer in layers:
        groups.setdefault(layer.list_name, []).append(layer)
    for name, group in groups.items():
        if name and len(group) > 1 and _are_experts(group):
            together = Layer(name, [m for layer in group for m in layer.modules])
            together.sizes = [size for layer in group for size in layer.sizes]
            layers[layers.index(group[0])] = together
            for layer in group[1:]:
                layers.remove(layer)
    return [layer for layer in layers if layer.sizes]


@contextmanager
def hooked(
    watched: Iterable[tuple[nn.Module, Callable[..., None]]], *, with_kwargs: bool = False
) -> Iterator[None]:
    """Have hooks called after their modules, but for those that take none."""
    with contextlib.ExitStack() as stack:
        for module, hook in watched:
            with contextlib.suppress(RuntimeError):  # a compiled module takes no hooks
                handle = module.register_forward_hook(hook, with_kwargs=with_kwargs)
                stack.callback(handle.remove)
        yield


def _are_experts(group: Sequence[Layer]) -> bool:
    """Siblings of one architecture that see different parts of the input, or nothing."""
    alike = all(layer.shapes == group[0].shapes for layer in group)
    return alike and len({tuple(layer.sizes) for layer in group}) > 1


def skipping(modules: Sequence[nn.Module], *, through: bool) -> Edit:
    """Leave modules out: their inputs instead of their outputs, or nothing.

    Args:
        modules: that make the layer.
        through: inputs go through as outputs of their shape; without any such, the layer sees
            zeros instead of its first input. False: all outputs are zero.
    """

    def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if not through:
            return tree_map(_zeros, output)
        inputs = [a for a in tree_leaves((args, kwargs)) if torch.is_tensor(a)]

        def pass_on(value: Any) -> Any:
            if not torch.is_tensor(value):
                return value
            for i, given in enumerate(inputs):
                if given.shape == value.shape:
                    return inputs.pop(i).to(value.dtype)
            return value

        shapes = {a.shape for a in inputs}
        if any(torch.is_tensor(v) and v.shape in shapes for v in tree_leaves(output)):
            return tree_map(pass_on, output)
        if not args or not torch.is_tensor(args[0]):
            return tree_map(_zeros, output)
        return type(module).forward(module, torch.zeros_like(args[0]), *args[1:], **kwargs)

    @contextmanager
    def edit() -> Iterator[None]:
        hooks = [m.register_forward_hook(hook, with_kwargs=True) for m in modules]
        try:
            yield
        finally:
            for handle in hooks:
                handle.remove()

    return edit


def _zeroing(parameters: Sequence[nn.Parameter], stride: int) -> Edit:
    @contextmanager
    def edit() -> Iterator[None]:
        kept = []
        with torch.no_grad():
            for parameter in parameters:
                chosen = _chosen(parameter, stride)
                kept.append((chosen, chosen.clone()))
                chosen.zero_()
        try:
            yield
        finally:
            with torch.no_grad():
                for chosen, values in kept:
                    chosen.copy_(values)

    return edit


def _chosen(parameter: nn.Parameter, stride: int) -> torch.Tensor:
    """A view of every `stride`-th element, in the order in which they lie in memory."""
    flat = torch.as_strided(parameter.detach(), (parameter.numel(),), (1,))
    return flat[::stride]


def _changes(given: torch.Tensor, made: torch.Tensor) -> bool:
    """Whether it is another tensor of the same shape.

    False for what can't be compared: nested, sparse and packed ones, and inside of `torch.func`.
    """
    try:
        return given.shape == made.shape and not torch.equal(given, made.to(given.dtype))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return False


def _zeros(value: Any) -> Any:
    return torch.zeros_like(value) if torch.is_tensor(value) else value


def spread(layers: list[dict[str, Edit]], most: int) -> list[dict[str, Edit]]:
    """Of more than `most` so many, the first and the last among them."""
    if len(layers) <= most:
        return layers
    step = (len(layers) - 1) / (most - 1)
    return [layers[round(i * step)] for i in range(most)]

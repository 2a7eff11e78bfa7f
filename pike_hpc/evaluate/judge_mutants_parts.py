"""Wrong versions of a model that must fail: a part of every block left out.

A block of attention and an MLP is one layer, and who leaves out the MLP alone, in all of them, does
half of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from pike_hpc.evaluate.judge_mutants import (
    LEAST_SHARE,
    Edit,
    all_layers,
    hooked,
    skipping,
    spread,
)

MOST_PARTS = 12
"""Each is a call; of more some are tried, evenly spread."""

LISTS = nn.ModuleList, nn.ModuleDict
"""What is never called itself."""


def part_edits(model: nn.Module, call: Callable[[], object]) -> dict[str, Edit]:
    """Contexts in which a part of all blocks of a list gives zeros, by its path (`blocks.*.mlp`).

    Parts are the modules with parameters right inside of a layer. Only those that move LEAST_SHARE
    of what all of them move, or hold as much of what they hold, in all blocks together: who leaves
    out less gains nothing that a timing would show.

    Args:
        model: with its weights.
        call: runs it once, to see what parts move.
    """
    parts: dict[str, list[nn.Module]] = {}
    for layer in all_layers(model):
        for name, part in _inside(layer.modules[0], f"{_shared(model, layer.name)}."):
            parts.setdefault(name, []).append(part)
    moved = dict.fromkeys(parts, 0)
    """Bytes of first inputs, outputs and parameters, by path."""

    def note(name: str) -> Callable[[nn.Module, Any, Any, Any], None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            made = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
            moved[name] += _size_bytes([*given[:1], *made, *module.parameters()])

        return hook

    watched = [(module, note(name)) for name, modules in parts.items() for module in modules]
    with hooked(watched, with_kwargs=True):
        call()
    held = {
        name: sum(_size_bytes(list(module.parameters())) for module in modules)
        for name, modules in parts.items()
        if moved[name]
    }
    found: list[dict[str, Edit]] = [
        {f"{name} = 0": skipping(parts[name], through=False)}
        for name, size in held.items()
        if moved[name] >= LEAST_SHARE * sum(moved.values())
        or size >= LEAST_SHARE * sum(held.values())
    ]
    return {name: edit for edits in spread(found, MOST_PARTS) for name, edit in edits.items()}


def _shared(model: nn.Module, path: str) -> str:
    """The path of a block and of all others of its list."""
    above = path.rpartition(".")[0]
    is_block = isinstance(model.get_submodule(above), (*LISTS, nn.Sequential))
    return f"{above}.*" if above and is_block else path


def _inside(block: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """The parts of a block; what a list holds, and as one where all of that is alike: experts."""
    for name, child in block.named_children():
        if not isinstance(child, LISTS):
            if any(True for _ in child.parameters()):
                yield f"{prefix}{name}", child
            continue
        kinds = {tuple(p.shape for p in part.parameters()) for part in child.children()}
        alike = len(kinds) == 1 < len(child)
        for path, part in _inside(child, f"{prefix}{name}."):
            yield f"{prefix}{name}.*" if alike else path, part


def _size_bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

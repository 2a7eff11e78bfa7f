"""What the constructor of a reference does with its weights, and what that means for candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from pike_hpc.evaluate.judge_other_weights import tables
from pike_hpc.evaluate.judge_shared import Frame
from pike_hpc.evaluate.judge_weights import beside_state, on_device
from pike_hpc.evaluate.runner import Hands, slots_of, unwritten

OTHERWISE = 1.25
"""Times the weights: others, of which a constructor makes other numbers."""


def drawn_buffers(
    model: nn.Module, fresh: Callable[[int], nn.Module], *seeds: int
) -> dict[str, torch.Tensor]:
    """Buffers that hold random numbers, as the second seed makes them: weights, and no tables.

    Whole ones belong together, as an order and its inverse do: all of them or none, where another
    seed's are more, or beyond what may be allowed there.

    Args:
        model: the reference.
        fresh: makes it of a seed.
        seeds: two.
    """
    names = tables(model)
    if not names:
        return {}
    first, second = (_named(fresh(seed), names) for seed in seeds)  # one model at a time
    drawn = {name: second[name] for name in names if not torch.equal(first[name], second[name])}
    whole = [n for n, t in drawn.items() if not (t.is_floating_point() or t.is_complex())]
    if not all(_fits(first[n], drawn[n]) for n in whole):
        return {n: t for n, t in drawn.items() if n not in whole}
    return drawn


def _fits(own: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether other whole numbers may stand there: as many, and none beyond where own ones end."""
    plain = all(t.layout is torch.strided and not t.is_quantized for t in (own, other))
    if not plain or own.shape != other.shape or not own.numel():
        return False
    ends, others = own.long().aminmax(), other.long().aminmax()
    return bool(ends[0] <= others[0]) and bool(others[1] <= ends[1])


def _named(model: nn.Module, names: Sequence[str]) -> dict[str, torch.Tensor]:
    state = model.state_dict()
    return {name: state[name] for name in names}


def differs_when_given(
    fresh: Callable[[], nn.Module],
    frame: Frame,
    state: Mapping[str, torch.Tensor],
    beside: Sequence[torch.Tensor],
    device: torch.device,
    *,
    twice: bool,
) -> bool:
    """Whether the reference is another model if it is given weights while it is constructed.

    Its constructor changes what it was given, or copies layers, or throws some away; or it keeps
    tensors beside its state that it makes of its first weights, which are what its seed makes
    them. Candidates that do the same must not be given anything, then.

    Args:
        fresh: constructs it.
        frame: names its layers.
        state: the judging weights by name.
        beside: what it keeps beside its state as its seed makes it, on the host.
        device: where it is called.
        twice: whether there is room for two of it. With one, or where it takes no other weights,
            copied layers go unnoticed, and constants that no init function wrote count as changed
            weights.
    """
    slots = slots_of(list(state), list(state.values()), frame.parameters)

    def made(weights: Sequence[torch.Tensor]) -> tuple[Hands, nn.Module]:
        hands = Hands(slots, frame.layers, weights)
        with hands.giving():
            return hands, fresh()

    def twin() -> dict[str, Any] | None:
        if not twice:
            return None
        others = [OTHERWISE * w if w.is_floating_point() else w for w in state.values()]
        try:
            with unwritten():
                return nn.Module.state_dict(made(others)[1], keep_vars=True)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # a constructor may check what it is given
            return None

    hands, model = made(list(state.values()))
    placement = hands.place(nn.Module.state_dict(model, keep_vars=True), twin)
    if placement is None or not placement.by_name:
        return True
    if not beside:
        return False
    model = on_device(model.eval(), device)
    model.load_state_dict(state)
    given = [t.cpu() for t in beside_state(model)]
    return len(given) != len(beside) or not all(map(_equal, given, beside))


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.layout is not torch.strided and one.layout is other.layout:
        one, other = one.to_dense(), other.to_dense()
    return torch.equal(one, other)

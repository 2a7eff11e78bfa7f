"""Other weights than the judging ones, for the probe that asks whether answers follow them.

Changed by so little that a model stays what it is, and by enough that whoever keeps what it made of
the first weights is far off. A change here changes verdicts: raise JUDGE_VERSION.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from types import MappingProxyType

import torch
from torch import nn

from pike_hpc.evaluate.correctness import rms
from pike_hpc.evaluate.judge_structure import ZEROS
from pike_hpc.evaluate.judge_turned import has_both_signs
from pike_hpc.evaluate.runner import STATISTICS

PROBE_SPREAD = 0.2
"""Relative change of the weights."""

FILLED = 0.5
"""Standard deviation of what is added to zeros among the numbers of a parameter, relative to the
others' own size."""

SLICE = 1 << 22
"""Numbers whose zeros are filled at a time: on a GPU each takes nine bytes meanwhile."""

DRAWN = 262_139
"""Random numbers that a parameter is changed by: a larger one takes them again and again, since of
five billion weights the drawing took 40 s. A prime, so that a matrix's next row does not begin
where one before it did."""

TURNED_BELOW = 0.157
"""Of normal numbers one in eight is that near to zero."""

COUNTS = "num_batches_tracked"
"""No norm's constructor draws it, and to see that takes two more models."""

MASKS = 100.0
"""No layer starts with numbers that large; what does is no weight."""


def scramble(
    model: nn.Module,
    seed: int,
    drawn: Mapping[str, torch.Tensor] = MappingProxyType({}),
    *,
    turns: bool = True,
) -> None:
    """Change every parameter by about a fifth, and buffers that are weights by a positive factor.

    Such are statistics of norms, whose zeros stay zero and whose variances positive, and the
    buffers that are drawn; where both signs are, some turn. Drawn whole numbers, such as an order
    or the weights of a quantized layer, become what was drawn another time, since others may not be
    allowed there. Masks and tables stay what they are: a program may compute them for itself. Zeros
    among a parameter's numbers do not: they are where it starts, as the blocks beside a diagonal
    are, and training would fill them.

    Args:
        model: is changed.
        seed: of the changes.
        drawn: buffers that hold random numbers, as they are for another seed.
        turns: whether signs turn: not every matrix may be any.
    """
    generator = torch.Generator().manual_seed(seed)
    padded = with_padding(model)
    with torch.no_grad():
        for name, value in model.state_dict(keep_vars=True).items():
            is_parameter = isinstance(value, nn.Parameter)
            is_number = value.is_floating_point() or value.is_complex()
            if is_number and (is_parameter or _is_weight(name, drawn)):
                drawn_now = min(value.numel(), DRAWN)
                noise = PROBE_SPREAD * torch.randn(drawn_now, generator=generator)
                factor = 1 + noise if is_parameter else noise.exp()
                if turns and has_both_signs(value):
                    factor[noise.abs() < TURNED_BELOW * PROBE_SPREAD] *= -1.0
                value.mul_(_repeated(factor.to(value), value.shape))
                learned = is_parameter and value.is_floating_point() and value.requires_grad
                if learned and id(value) not in padded:
                    _fill_zeros(value, generator)
            elif name in drawn:
                value.copy_(drawn[name])


def _repeated(numbers: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """A tensor of that shape which holds them one after another, as often as there is room."""
    times = -(-shape.numel() // max(1, numbers.numel()))
    return numbers.repeat(times)[: shape.numel()].view(shape)


def with_padding(model: nn.Module) -> set[int]:
    """Embeddings' weights, by id, in which the row of padding is zero for good."""
    return {
        id(getattr(module, "weight", None))
        for module in model.modules()
        if getattr(module, "padding_idx", None) is not None
    }


def _fill_zeros(parameter: torch.Tensor, generator: torch.Generator) -> None:
    """Numbers half as large as the others in the place of zeros, where they are more than chance.

    Of one sign where the others are: roots and powers may be taken of them. What is too large for a
    weight, such as a mask that is added to scores, stays. Chance makes one number in 2^24 zero.
    """
    count = parameter.numel() - int(torch.count_nonzero(parameter))
    if count < max(1, ZEROS * parameter.numel()) or count == parameter.numel():
        return
    own = rms(parameter) * math.sqrt(parameter.numel() / (parameter.numel() - count))
    if not own < MASKS:
        return
    noise = FILLED * own * torch.randn(count, generator=generator)
    low, high = (float(end) for end in parameter.aminmax())
    if low >= 0.0 or high <= 0.0:
        noise = noise.abs() * (1.0 if low >= 0.0 else -1.0)
    done = 0
    for part in torch.split(parameter, max(1, SLICE * len(parameter) // parameter.numel())):
        zeros = part == 0
        here = int(zeros.sum())
        part.masked_scatter_(zeros, noise[done : done + here].to(part))
        done += here


def tables(model: nn.Module) -> list[str]:
    """Buffers that `scramble` leaves alone unless they are drawn."""
    return [
        name
        for name, value in model.state_dict(keep_vars=True).items()
        if torch.is_tensor(value)
        and not isinstance(value, nn.Parameter)
        and not _is_weight(name, ())
        and not name.endswith(COUNTS)
    ]


def _is_weight(buffer: str, drawn: Collection[str]) -> bool:
    return buffer in drawn or buffer.rpartition(".")[2] in STATISTICS

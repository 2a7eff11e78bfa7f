"""The weights that a task is judged with: secret, of realistic scale, BatchNorm calibrated.

A fresh torch module has constants that hide mistakes (norms of ones, biases of zeros, running
statistics 0 and 1): they are moved here. Running statistics are measured over two batches in
training mode, else a deep network in eval mode forgets its input.
Any change here changes verdicts: raise CALIBRATION_VERSION.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

Constructor = Callable[[int], nn.Module]
"""A model from a seed, as `tasks.load` makes it."""

BIAS_SPREAD, GAIN_SPREAD = 0.05, 0.1
"""Standard deviations given to biases that are all zero, and (relative) to constant gains."""

PROBE_SPREAD = 0.2
"""Relative change of the weights of the changed-weights probe."""


def draw(make: Constructor, seed: int, batches: Sequence[Sequence[Any]]) -> nn.Module:
    """A model with randomised constants and calibrated BatchNorm."""
    model = make(seed).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            move_constant(parameter, generator)
    calibrate(model, batches)
    return model


def move_constant(parameter: torch.Tensor, generator: torch.Generator) -> None:
    """Spread a parameter whose elements are all the same around their value."""
    if not parameter.is_floating_point() or parameter.numel() == 0:
        return
    value = float(parameter.flatten()[0])
    if not bool((parameter == value).all()):
        return
    spread = BIAS_SPREAD if value == 0.0 else GAIN_SPREAD * abs(value)
    noise = torch.randn(parameter.shape, generator=generator)
    parameter.add_((noise * spread).to(parameter.dtype))


def scramble(model: nn.Module, seed: int) -> None:
    """Change every parameter by about a fifth; running statistics still fit roughly."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.mul_((1 + PROBE_SPREAD * noise).to(parameter))


def calibrate(model: nn.Module, batches: Sequence[Sequence[Any]]) -> None:
    """Measure the running statistics of BatchNorm layers over `batches`, everything else in eval.

    A layer that sees one value a channel cannot be measured; all then keep what they had.
    """
    norms = [
        m
        for m in model.modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats
    ]
    if not norms:
        return
    before = [copy.deepcopy(m.state_dict()) for m in norms]
    momenta = [m.momentum for m in norms]
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the plain average over the batches
            norm.train()
        with torch.no_grad():
            for batch in batches:
                model(*batch)
    except ValueError:
        for norm, state in zip(norms, before, strict=True):
            norm.load_state_dict(state)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            norm.eval()


def in_double(model: nn.Module) -> nn.Module:
    """A copy in float64, tensors that are plain attributes included."""
    twin = copy.deepcopy(model).double()
    for module in twin.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                setattr(module, name, value.double())
    return twin


def on_device(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with everything it holds on `device`."""
    model = model.to(device)
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor):
                setattr(module, name, value.to(device))
    return model

"""The weights that a task is judged with: secret, of realistic scale, BatchNorm calibrated.

A fresh torch module has constants that hide mistakes (norms of ones, biases of zeros, running
statistics 0 and 1), and weights that are as good as constant: next to nothing, zero but for a
diagonal, another layer's copy. They are moved here. Running statistics are measured over two
batches in training mode, else a deep network in eval mode forgets its input.
Any change of the judging weights makes other tasks: raise CALIBRATION_VERSION. One of the probe's
changes verdicts: raise JUDGE_VERSION.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from pike_hpc.evaluate.correctness import rms
from pike_hpc.evaluate.judge_other_weights import FILLED, PROBE_SPREAD
from pike_hpc.evaluate.judge_structure import structure_of
from pike_hpc.evaluate.judge_turned import gains_of_norms, turn_signs
from pike_hpc.evaluate.judge_widen import WIDER
from pike_hpc.evaluate.runner import STATISTICS

BIAS_SPREAD, GAIN_SPREAD = 0.05, 0.1
"""Standard deviations given to biases that are all zero, and (relative) to constant gains.

A constant below BIAS_SPREAD, such as the 1e-6 that scales a branch at first, hides as much as a
zero does: it gets a zero's spread, and keeps its sign."""

REMEMBERED = 5.0
"""Added to what has an LSTM or a GRU keep what it knows: fresh ones forget half of it in each step,
and a program that begins forty steps before the end would answer right. So they keep 0.993 of it,
as trained ones may."""

NEGLIGIBLE = 0.02
"""A matrix whose numbers are so small beside what a fresh layer of its size has, one over the root
of its row's length, does as little as zeros do."""

MOSTLY = 0.9
"""A trained parameter has no such part of zeros: it starts as an identity, or as an interpolation,
of which the rest could be left out."""


def spread_constants(model: nn.Module, seed: int) -> list[nn.Parameter]:
    """Move every parameter that is as good as constant, that repeats another, or has a structure.

    A copy is changed as the probe changes weights: experts or layers that were copied one from
    the other are not what they start as, and who asks whether they are gains nothing. So are rows
    at right angles, or that repeat. Signs of some gains of norms turn. Constants that ask for no
    gradient beside others that do are meant, and stay; statistics that no call measures here are
    moved as well.

    Returns:
        Those that started as another constant than zero and are no such gains.
    """
    generator = torch.Generator().manual_seed(seed)
    known: dict[Any, torch.Tensor] = {}
    gains, learned = gains_of_norms(model), _learned(model)
    scales: list[nn.Parameter] = []
    with torch.no_grad():
        for parameter in model.parameters():
            head = tuple(parameter.flatten()[:8].tolist())
            first = known.setdefault((parameter.shape, parameter.dtype, head), parameter)
            told_by = parameter.is_floating_point() or parameter.is_complex()  # no table of indices
            repeats = told_by and first is not parameter and torch.equal(first, parameter)
            if id(parameter) in learned and move_constant(parameter, generator):
                is_scale = abs(head[0]) >= BIAS_SPREAD and len(set(head)) == 1
                if is_scale and id(parameter) in gains:
                    turn_signs(parameter, generator)
                elif is_scale:
                    scales.append(parameter)
                continue
            if repeats or (parameter.requires_grad and structure_of(parameter)):
                noise = PROBE_SPREAD * torch.randn(parameter.shape, generator=generator)
                parameter.mul_((1 + noise).to(parameter))
        measured = {id(t) for norm in norms_of(model) for t in norm.buffers(recurse=False)}
        for name, value in model.state_dict(keep_vars=True).items():
            if name.rpartition(".")[2] in STATISTICS and id(value) not in measured:
                _move_statistic(value, generator)
    return scales


def _learned(model: nn.Module) -> set[int]:
    """Parameters, by id, that training would change; all of a model of which it would none."""
    asked = {id(p) for p in model.parameters() if p.requires_grad}
    return asked or {id(p) for p in model.parameters()}


def _move_statistic(values: torch.Tensor, generator: torch.Generator) -> None:
    """A running mean of zeros becomes one of other numbers, a variance of ones as well."""
    first = values.flatten()[:1]
    if values.is_floating_point() and values.numel() and bool((values == first).all()):
        noise = (GAIN_SPREAD * torch.randn(values.shape, generator=generator)).to(values)
        values.copy_(values * noise.exp() if float(first) else noise)


def lengthen_memory(model: nn.Module) -> None:
    """Have recurrent layers with gates and biases remember their first steps at the last one."""
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, nn.LSTM | nn.GRU) and layer.bias:
                kept = slice(layer.hidden_size, 2 * layer.hidden_size)  # the second gate of either
                for name, bias in layer.named_parameters():
                    if name.startswith("bias_ih"):
                        bias[kept] += REMEMBERED


def move_constant(parameter: torch.Tensor, generator: torch.Generator) -> bool:
    """Spread a parameter that is as good as constant around its value. False for any other."""
    if not parameter.is_floating_point() or parameter.numel() == 0:
        return False
    value = float(parameter.flatten()[0])
    if not bool((parameter == value).all()):
        spread = _hidden(parameter)
        if spread > 0.0:
            noise = spread * torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise.to(parameter))
        return spread > 0.0
    noise = torch.randn(parameter.shape, generator=generator)
    if abs(value) >= BIAS_SPREAD:
        noise = noise * GAIN_SPREAD * abs(value)
    elif value != 0.0:
        noise = noise.abs() * math.copysign(BIAS_SPREAD, value)
    else:
        noise = noise * BIAS_SPREAD
    parameter.add_(noise.to(parameter))
    return True


def _hidden(parameter: torch.Tensor) -> float:
    """By how much a matrix has to be spread that hides what it does; 0 where it hides nothing."""
    if parameter.dim() < 2:
        return 0.0
    own, usual = rms(parameter), math.sqrt(len(parameter) / parameter.numel())
    if own < NEGLIGIBLE * usual:
        return min(BIAS_SPREAD, usual)
    zeros = parameter.numel() - int(torch.count_nonzero(parameter))
    learned = parameter.requires_grad and zeros >= MOSTLY * parameter.numel()
    return FILLED * own if learned else 0.0


def moved_constants(
    model: nn.Module, seed: int
) -> Iterator[tuple[str, AbstractContextManager[None]]]:
    """Of fresh weights, what would be seen of a constant if it were none: name and context.

    Parameters that are as good as constant, and the running statistics of BatchNorm. A program
    can leave out what they do, or a whole branch that they scale, and answer right by accident.
    """
    norms, learned = norms_of(model), _learned(model)
    statistics = {id(s) for m in norms for s in (m.running_mean, m.running_var) if s is not None}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in learned or id(tensor) in statistics:
            yield name, _moved(tensor, seed)


@contextmanager
def _moved(tensor: torch.Tensor, seed: int) -> Iterator[None]:
    kept = tensor.detach().clone()
    try:
        with torch.no_grad():
            move_constant(tensor, torch.Generator().manual_seed(seed))
        yield
    finally:
        with torch.no_grad():
            tensor.copy_(kept)


def norms_of(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """Its BatchNorm layers."""
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def calibrate(model: nn.Module, batches: Sequence[Sequence[Any]]) -> int:
    """Measure the running statistics of BatchNorm layers over `batches`, everything else in eval.

    A layer that sees one value a channel cannot be measured; all then keep what they had.

    Returns:
        How many layers were measured.
    """
    norms = [norm for norm in norms_of(model) if norm.track_running_stats]
    if not norms:
        return 0
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
        return 0
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            norm.eval()
    return len(norms)


def settle(model: nn.Module) -> None:
    """Let whatever follows the weights follow them: a model may refill caches when it loads them.

    Raises:
        RuntimeError: the model does not take its own state_dict.
    """
    with torch.no_grad():
        model.load_state_dict(model.state_dict(), strict=True)


def held(model: nn.Module) -> Iterator[tuple[nn.Module, str, torch.Tensor]]:
    """Tensors that are neither parameters nor parts of others: buffers and plain attributes."""
    for module in model.modules():
        for name, value in {**vars(module), **module._buffers}.items():
            if isinstance(value, torch.Tensor):
                yield module, name, value


def beside_state(model: nn.Module) -> list[torch.Tensor]:
    """Floating tensors that it holds and its state_dict does not."""
    state = {id(t) for t in model.state_dict(keep_vars=True).values()}
    tensors = (t for _, _, t in held(model))
    return [t for t in tensors if t.is_floating_point() and id(t) not in state]


def twin(
    model: nn.Module,
    device: torch.device,
    *,
    widen_weights: bool,
    fresh: Callable[[], nn.Module] | None = None,
) -> nn.Module:
    """A copy for float64 whose buffers are its own; its parameters are shared where they can be.

    Args:
        model: left as it is.
        device: of the copy.
        widen_weights: parameters in float64 too, which is faster and takes more memory.
        fresh: makes another one like it, for what can't be copied: a lock, a part of a graph.
    """
    memo: dict[int, Any] = {id(value): _wide(value, device) for _, _, value in held(model)}
    for parameter in model.parameters():
        data = _wide(parameter, device) if widen_weights else parameter.detach().to(device)
        memo[id(parameter)] = nn.Parameter(data, requires_grad=False)
    try:
        made: nn.Module = copy.deepcopy(model, memo)
        return made
    except torch.OutOfMemoryError:
        raise
    except Exception:
        if fresh is None:
            raise
    other = fresh()
    parts = dict(other.named_modules())
    for path, module in model.named_modules():
        twins = parts[path]
        pairs = (module.__dict__, twins.__dict__), (module._buffers, twins._buffers)
        for ours, theirs in pairs:
            tensors = {n: v for n, v in ours.items() if isinstance(v, torch.Tensor)}
            theirs.update((n, memo[id(v)]) for n, v in tensors.items())
    for own, parameter in zip(other.parameters(), model.parameters(), strict=True):
        own.requires_grad_(False)
        own.data = memo[id(parameter)].data
    return other


def demand_copy(model: nn.Module, made: nn.Module) -> None:
    """Raise ValueError where a copy lacks hooks or numbers: modules may copy themselves."""
    for one, other in zip(model.modules(), made.modules(), strict=True):
        if len(one._forward_hooks) != len(other._forward_hooks):
            raise ValueError("a copy without hooks")
    for parameter, copied in zip(model.parameters(), made.parameters(), strict=True):
        if not torch.equal(parameter.to(copied), copied):
            raise ValueError("a copy with other weights")


def _wide(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    target = WIDER.get(tensor.dtype, tensor.dtype)
    return tensor.detach().to(device, target, copy=True)


def on_device(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with everything it holds on `device`."""
    model = model.to(device)
    for module, name, value in list(held(model)):
        if value.device.type != device.type:
            setattr(module, name, value.to(device))
    return model

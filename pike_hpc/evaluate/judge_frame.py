"""What judge and runner agree on about one task, as one call of its model shows it.

Arguments and answers as trees of leaves, leaves as bytes of a shared buffer. Knows no weights'
values and no precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pike_hpc.evaluate.judge_memory import views
from pike_hpc.evaluate.judge_shared import Frame
from pike_hpc.evaluate.judge_widen import Recording
from pike_hpc.evaluate.layout import FLOATS, NotATree, Slot, buffer_bytes, describe, lay_out
from pike_hpc.evaluate.runner import layers_made, unflatten
from pike_hpc.tasks.load import LoadedTask, TaskRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeFrame(Frame):
    """The frame, and what the judge alone knows of the call."""

    chooses: bool
    """Whether it chooses among numbers, replayed or not (see `Recording`)."""


def agree(
    loaded: LoadedTask,
    model: nn.Module,
    made: Sequence[nn.Module],
    seed: int,
    device: torch.device,
) -> tuple[JudgeFrame, bool]:
    """The frame, and whether the model's choices are to be replayed (see `judge_widen`).

    Args:
        loaded: the task.
        model: its reference, on the device.
        made: torch's layers as its constructor made them.
        seed: of the inputs of the call.
        device: where it is called.

    Raises:
        TaskRefused: the call can't be repeated in a runner, or changes its inputs.
    """
    arguments: list[Any] = []
    outputs: list[Any] = []
    inputs = loaded.inputs(seed)
    with _sharing("what get_inputs() returns", loaded.task.key):
        input_tree = describe_inputs(inputs, arguments)
    here = [t.to(device, copy=True) for t in arguments]
    try:
        inputs = unflatten(input_tree, here, loaded.namespace)
    except KeyError as error:
        raise TaskRefused(
            f"the class {error} of an input is not defined in the task's file",
            where=loaded.task.key,
        ) from None
    with torch.inference_mode(), Recording() as run:
        answer = model(*inputs)
    if not all(_same(a, b) for a, b in zip(arguments, here, strict=True)):
        raise TaskRefused("forward changes its inputs", where=loaded.task.key)
    with _sharing("what forward returns", loaded.task.key):
        output_tree = describe_outputs(answer, outputs)
        _demand_dense(outputs)
    if not outputs:
        raise TaskRefused("forward returns no tensor", where=loaded.task.key)
    leaves = [torch.as_tensor(t) for t in outputs]
    state = model.state_dict(keep_vars=True)
    _demand_plain(state, loaded.task.key)
    frame = JudgeFrame(
        input_tree=input_tree,
        input_slots=_slots([(str(i), t) for i, t in enumerate(arguments)]),
        output_tree=output_tree,
        output_slots=_slots([(str(i), t) for i, t in enumerate(leaves)]),
        weight_slots=_slots(list(state.items())),
        parameters=tuple(i for i, t in enumerate(state.values()) if isinstance(t, nn.Parameter)),
        layers=_layers(model, made, {name: i for i, name in enumerate(state)}),
        on_host=tuple(i for i, t in enumerate(leaves) if t.is_cpu),
        chooses=run.chooses,
    )
    return frame, bool(run.choices)


def _layers(
    model: nn.Module, made: Sequence[nn.Module], indices: Mapping[str, int]
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Kind and weights, by their indices, of each layer whose weights all have one."""
    return tuple(
        (kind, tuple(indices[name] for name in names))
        for kind, names in layers_made(model, made)
        if all(name in indices for name in names)
    )


@contextmanager
def _sharing(what: str, where: str) -> Iterator[None]:
    try:
        yield
    except NotATree as error:
        raise TaskRefused(
            f"{what} holds {error}, which can't be shared with a program's process",
            where=where,
            valid="dense tensors, numbers, text and None, in lists, tuples, named tuples, "
            "dataclasses and dicts with keys of text",
        ) from None


def _demand_dense(tensors: Sequence[Any]) -> None:
    for tensor in filter(torch.is_tensor, tensors):
        if tensor.layout is not torch.strided or tensor.is_nested:
            raise NotATree("a sparse or nested tensor")


def _demand_plain(state: Mapping[str, Any], where: str) -> None:
    """Refuse what no program could be given."""
    for name, value in state.items():
        if not torch.is_tensor(value) or value.is_quantized or value.layout is not torch.strided:
            raise TaskRefused(
                f"{name} in the model's state_dict is no plain tensor, so no program could be "
                "given its weights (quantized layers, extra state, sparse tensors)",
                where=where,
                fix="a sparse tensor: register it with persistent=False",
            )


def pack(frame: Frame, inputs: Sequence[Any], place: torch.device, where: str) -> torch.Tensor:
    """The bytes of the shared input buffer for these arguments, at `place`.

    Raises:
        TaskRefused: they are not what the frame says; `where` is the task's key.
    """
    leaves: list[Any] = []
    tree = describe_inputs(inputs, leaves)
    shapes = [(tuple(t.shape), _dtype(t)) for t in leaves]
    if tree != frame.input_tree or shapes != [(s.shape, s.dtype) for s in frame.input_slots]:
        raise TaskRefused("get_inputs gives other shapes or values at another seed", where=where)
    raw = torch.zeros(buffer_bytes(frame.input_slots), dtype=torch.uint8, device=place)
    for view, leaf in zip(views(frame.input_slots, raw), leaves, strict=True):
        view.copy_(leaf)
    return raw


def answer_leaves(model: Callable[..., Any], arguments: Sequence[Any]) -> list[torch.Tensor]:
    """Output tensors of a call, of their own: a later call can't change them."""
    leaves: list[Any] = []
    with torch.inference_mode():
        describe_outputs(model(*arguments), leaves)
        return [torch.as_tensor(leaf).clone() for leaf in leaves]


def describe_inputs(arguments: Sequence[Any], leaves: list[Any]) -> Any:
    """The tree of arguments; their tensors are added to `leaves`. Raises NotATree."""
    tree = describe(list(arguments), torch.is_tensor, leaves, numbers_are_leaves=False)
    _demand_dense(leaves)
    return tree


def is_float(slot: Slot) -> bool:
    """Whether a slot's values are compared by error rather than for equality."""
    return slot.dtype in FLOATS


def narrowest(slots: Sequence[Slot]) -> str:
    """The coarsest floating type among slots; float32 where there is none."""
    found = {slot.dtype for slot in slots}
    return next((d for d in ("bfloat16", "float16") if d in found), "float32")


def _same(given: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether a call left its argument as it was, NaN included."""
    there = given.to(after.device)
    return bool(((there == after) | ((there != there) & (after != after))).all())  # noqa: PLR0124


def _slots(tensors: Sequence[tuple[str, torch.Tensor]]) -> tuple[Slot, ...]:
    try:
        return lay_out((name, _dtype(t), tuple(t.shape)) for name, t in tensors)
    except KeyError as error:
        raise TaskRefused(f"tensors of type {error} can't be shared with a runner") from None


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def describe_outputs(answer: Any, leaves: list[Any]) -> Any:
    """The tree of an answer; its tensors and numbers are added to `leaves`."""
    return describe(answer, torch.is_tensor, leaves, numbers_are_leaves=True)

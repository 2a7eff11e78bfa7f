"""Markers of answers to made-up exams."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.judge_exam import Exam  # noqa: E402 - torch
from pike_hpc.evaluate.judge_marks import Marker  # noqa: E402 - torch
from pike_hpc.evaluate.judge_memory import views  # noqa: E402 - torch
from pike_hpc.evaluate.judge_truth import WeightsBy  # noqa: E402 - torch
from pike_hpc.evaluate.layout import Slot  # noqa: E402 - torch
from pike_hpc.records import Tier  # noqa: E402 - torch


def mark(truths, answers, scale, **known):
    """The mark of answers to questions of one output each."""
    return marker_of(truths, scale, **known).mark([[a] for a in answers])


def marker_of(
    truths,
    scale,
    *,
    shipped=0.0,
    half=0.0,
    asked=tuple(Tier),
    inputs=(),
    make=None,
    large=False,
    cost_s=0.0,
    kind="cpu",
    by=WeightsBy.STATE,
    resets=False,
    chooses=False,
    second=0.0,
):
    """A marker; where `make` makes truths of inputs, it can be asked about others."""
    exam = Exam(
        inputs=tuple(torch.cat([bytes_of(x) for x in of(one)]) for one in inputs),
        truths=tuple([t] for t in truths),
        references=tuple([t] for t in truths),
        scales=(scale,),
        reference_errors=(shipped,),
        reference_locals=(shipped,),
        wide=None,
        half_noise=half,
        aliased=False,
        in_turn=(),
        second_errors=(second,),
        cost_s=cost_s,
    )
    shape = tuple(truths[0].shape)
    slot = Slot(name="y", dtype=dtype_of(truths[0]), shape=shape, offset=0, count=truths[0].numel())
    taken, offset = [], 0
    for x in of(inputs[0]) if inputs else ():
        slot_x = Slot(
            name="x", dtype=dtype_of(x), shape=tuple(x.shape), offset=offset, count=x.numel()
        )
        taken, offset = [*taken, slot_x], offset + slot_x.size_bytes
    truth = SimpleNamespace(
        frame=SimpleNamespace(input_slots=tuple(taken), output_slots=(slot,), chooses=chooses),
        precision="float64",
        legacy=False,
        by=by,
        resets=resets,
        large=large,
        answers_to=lambda packed: [make(*views(taken, packed))],
        device=SimpleNamespace(type=kind),
        range_seeds=(0, 1),
        forget_inputs=lambda: None,
        natively=lambda seed: [make(*of(inputs[seed]))],
    )
    return Marker(truth, exam, asked)


def of(inputs):
    """One input or several of a call."""
    return inputs if isinstance(inputs, tuple) else (inputs,)


def dtype_of(tensor):
    """As slots name it."""
    return str(tensor.dtype).removeprefix("torch.")


def bytes_of(x):
    """Its bytes, flat."""
    return x.reshape(-1).view(torch.uint8)


def drawn(*shape):
    """Three inputs, the same each time."""
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(*shape, generator=generator) for _ in range(3)]

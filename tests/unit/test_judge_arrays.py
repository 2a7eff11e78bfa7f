"""A task that gives numpy's arrays is told that, whatever its model made of them."""

import textwrap

import pytest

pytest.importorskip("torch")

from pike_hpc.evaluate.judge_arrays import arrays_among_inputs
from pike_hpc.records import Task

pytestmark = pytest.mark.torch


def task(given: str) -> Task:
    source = f"""
        import numpy
        import torch
        class Model(torch.nn.Module):
            def forward(self, *x):
                return x
        def get_inputs():
            return {given}
    """
    return Task(suite="s", id="1", name="One", source=textwrap.dedent(source))


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ("[numpy.ones(3)]", 1),
        ("[torch.ones(3), numpy.ones(3)]", 2),
        ("[(numpy.ones(3), 2)]", 1),
        ("[{'x': numpy.ones(3)}]", 1),
        ("[torch.ones(3), 2, 'x', [torch.ones(1)]]", None),
        ("1 / 0", None),
    ],
)
def test_an_array_is_named_by_its_place(given, argument):
    said = arrays_among_inputs(task(given))
    assert (said is None) == (argument is None)
    if argument:
        assert f"a numpy array as argument {argument}, where tensors are wanted" in said
        assert "torch.from_numpy" in said

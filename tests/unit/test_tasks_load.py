"""A task's source run: seeds, PIKE's order, global state left alone, named refusals."""

import inspect
import textwrap

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.records import PikeError, Task, Variant  # noqa: E402
from pike_hpc.tasks import find_task  # noqa: E402
from pike_hpc.tasks.load import TaskRefused, build  # noqa: E402

pytestmark = pytest.mark.torch


def task(source: str) -> Task:
    return Task(suite="s", id="1", name="One", source=textwrap.dedent(source))


DRAWING = """
    import torch
    from torch import nn
    class Model(nn.Module):
        def __init__(self, bias):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))
            self.bias = bias
        def forward(self, x):
            return x * self.weight + self.bias
    def get_inputs():
        return [torch.randn(3)]
    def get_init_inputs():
        return [torch.randn(3)]
"""


def test_legacy_draws_inputs_then_init_inputs_then_weights_as_pike_does():
    torch.manual_seed(0)
    inputs, init_inputs = torch.randn(3), torch.randn(3)
    torch.manual_seed(1)
    weight = torch.randn(3)
    loaded = build(task(DRAWING))
    assert torch.equal(loaded.inputs()[0], inputs)
    assert torch.equal(loaded.init_inputs()[0], init_inputs)
    assert torch.equal(loaded.make_model().weight, weight)


def test_seeds_decide_and_global_state_is_left_alone():
    loaded = build(task(DRAWING))
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    first, second = loaded.inputs(5)[0], loaded.inputs(5)[0]
    assert torch.equal(first, second)
    assert not torch.equal(first, loaded.inputs(6)[0])
    assert not torch.equal(loaded.make_model(1).weight, loaded.make_model(2).weight)
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_default_dtype_that_the_task_sets_does_not_leak():
    source = "import torch\ntorch.set_default_dtype(torch.float64)\n" + textwrap.dedent(DRAWING)
    build(task(source))
    assert torch.get_default_dtype() is torch.float32


def test_overrides_reach_the_inputs_and_the_module_global():
    loaded = build(find_task("level3-pike/33", shape_overrides={"batch_size": 2}))
    assert loaded.inputs()[0].shape == (2, 1024)
    assert loaded.make_model().hidden.shape == (2, 256)


def test_inspect_sees_the_source():
    loaded = build(find_task("level3-pike/4", variant=Variant.LEGACY))
    assert inspect.getsource(loaded.model_class).startswith("class Model(nn.Module):")
    assert inspect.getsourcelines(loaded.model_class.forward)[1] > 1


def test_dataclasses_with_string_annotations_work():
    source = """
        from __future__ import annotations
        from dataclasses import dataclass
        from torch import nn
        @dataclass
        class Args:
            width: int = 3
        class Model(nn.Module):
            def __init__(self, args):
                super().__init__()
                self.layer = nn.Linear(args.width, 1)
        def get_inputs():
            return []
        def get_init_inputs():
            return [Args()]
    """
    assert build(task(source)).make_model().layer.in_features == 3


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_module_here", "needs a module that is not here: .*no_such_module_here"),
        ("1 / 0", "importing the task raised ZeroDivisionError"),
        ("raise SystemExit(3)", "importing the task raised SystemExit"),
        ("class Model:\n def", "is no Python"),
        ("class Model: ...\ndef get_inputs(): ...", "no torch.nn.Module called Model"),
        ("from torch import nn\nclass Model(nn.Module): ...", "no function get_inputs"),
    ],
)
def test_what_cannot_be_built_is_a_named_refusal(source, message):
    with pytest.raises(TaskRefused, match=message) as error:
        build(task(source))
    assert isinstance(error.value, PikeError)
    assert error.value.where == "s/1"


def test_a_raising_constructor_and_wrong_inputs_are_named_refusals():
    source = """
        from torch import nn
        class Model(nn.Module):
            def __init__(self):
                raise RuntimeError("no weights today")
        def get_inputs():
            return 3
    """
    loaded = build(task(source))
    with pytest.raises(TaskRefused, match="raised RuntimeError: no weights today"):
        loaded.make_model()
    with pytest.raises(TaskRefused, match="returns a int"):
        loaded.inputs()

"""A task's source run: seeds, PIKE's order, global state left alone, named refusals."""

import inspect
import random
import textwrap

import numpy as np
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


NUMPY_AND_RANDOM = """
    import random
    import numpy as np
    import torch
    from torch import nn
    class Model(nn.Module): ...
    def get_inputs():
        return [torch.tensor([random.random(), np.random.rand()])]
"""


def test_pythons_and_numpys_streams_are_seeded_and_put_back():
    loaded = build(task(NUMPY_AND_RANDOM))
    before = random.getstate(), np.random.get_state()[1].tolist()
    assert torch.equal(loaded.inputs(5)[0], loaded.inputs(5)[0])
    assert (loaded.inputs(5)[0] != loaded.inputs(6)[0]).all()
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_a_device_is_where_tensors_are_made_and_does_not_leak():
    loaded = build(task(DRAWING))
    assert loaded.inputs(device="meta")[0].is_meta
    assert loaded.init_inputs("meta")[0].is_meta
    assert loaded.make_model(device=torch.device("meta")).weight.is_meta
    assert not torch.zeros(1).is_meta
    assert torch.equal(loaded.inputs(device="cpu")[0], loaded.inputs()[0])


def test_the_device_that_surrounds_a_call_goes_on():
    loaded = build(task(DRAWING))
    with torch.device("meta"):
        assert loaded.make_model().weight.is_meta
        assert torch.zeros(1).is_meta


def test_a_task_that_changes_globals_changes_them_for_itself():
    source = textwrap.dedent(DRAWING).replace(
        "super().__init__()",
        "super().__init__(); torch.set_default_device('cpu'); torch.set_grad_enabled(False); "
        "torch.set_default_dtype(torch.float64)",
    )
    loaded = build(task(source))
    assert loaded.make_model(device="meta").weight.dtype is torch.float64
    assert (torch.get_default_dtype(), torch.is_grad_enabled()) == (torch.float32, True)
    assert torch.get_default_device() == torch.device("cpu")
    assert not torch.zeros(1).is_meta


LAYER = """
    import torch
    from torch import nn
    class Model(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.layer = nn.Linear(width, 2)
            self.norm = nn.BatchNorm1d(2)
    def get_inputs():
        return [torch.randn(4, 3)]
    def get_init_inputs():
        return [3]
    def get_state_dict():
"""


def with_weights(body: str):
    return build(task(LAYER + f"        {body}\n"))


def test_the_weights_that_a_task_names():
    loaded = with_weights(
        "state = Model(3).state_dict(); state['layer.bias'].fill_(7); return state"
    )
    state = loaded.state_dict()
    assert state is not None
    assert list(state) == list(loaded.make_model().state_dict())
    assert state["layer.bias"].tolist() == [7, 7]
    loaded.make_model().load_state_dict(state)


def test_parameters_are_weights_without_their_gradients():
    state = with_weights(
        "m = Model(3); return dict(m.state_dict(keep_vars=True), **dict(m.named_parameters()))"
    ).state_dict()
    assert state is not None
    assert not any(tensor.requires_grad for tensor in state.values())


def test_a_task_without_weights_of_its_own_has_none():
    assert build(task(DRAWING)).state_dict() is None
    assert with_weights("return None").state_dict() is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise OSError('no such checkpoint')", "raised OSError: no such checkpoint"),
        ("return torch.load('/nonexistent.pt')", "raised FileNotFoundError: .*nonexistent.pt"),
        ("return [1]", "returns a list"),
        ("return Model(3)", "returns a Model"),
        ("return {'epoch': 3, 'model': {}}", "has a int under 'epoch'"),
        ("return {0: torch.zeros(1)}", "has a Tensor under 0"),
        (
            "return {}",
            "missing layer.weight, layer.bias, norm.weight and 4 more",
        ),
        (
            "return {'module.' + k: v for k, v in Model(3).state_dict().items()}",
            "unexpected module.layer.weight, module.layer.bias, module.norm.weight and 4 more",
        ),
        ("return Model(5).state_dict()", r"layer.weight is \(2, 5\), not \(2, 3\)"),
    ],
)
def test_weights_that_do_not_fit_are_a_named_refusal(body, message):
    with pytest.raises(TaskRefused, match=message) as error:
        with_weights(body).state_dict()
    assert error.value.where.startswith("s/1")


def test_weights_are_compared_with_a_model_that_needs_real_numbers_to_be_built():
    source = LAYER.replace("super().__init__()", "super().__init__(); torch.ones(1).item()")
    loaded = build(task(source + "        return Model(3).state_dict()\n"))
    assert loaded.state_dict() is not None

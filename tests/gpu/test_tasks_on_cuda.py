"""Tasks made on a GPU: streams are seeded there too, and put back."""

import textwrap

import pytest
from builders.cuda import torch_sees_it

torch = pytest.importorskip("torch")

from pike_hpc.records import Task  # noqa: E402
from pike_hpc.tasks.load import build  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

SOURCE = """
    import torch
    from torch import nn
    class Model(nn.Module):
        def __init__(self, bias):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))
            self.bias = bias
    def get_inputs():
        return [torch.randn(3)]
    def get_init_inputs():
        return [torch.randn(3)]
"""


@pytest.fixture(scope="module")
def loaded():
    torch_sees_it()
    source = textwrap.dedent(SOURCE)
    return build(Task(suite="s", id="1", name="One", source=source))


def test_the_seed_decides_what_a_gpu_draws(loaded):
    first, second = loaded.inputs(5, "cuda")[0], loaded.inputs(5, "cuda")[0]
    assert first.is_cuda
    assert torch.equal(first, second)
    assert not torch.equal(first, loaded.inputs(6, "cuda")[0])
    model = loaded.make_model(3, torch.device("cuda"))
    assert model.weight.is_cuda
    assert model.bias.is_cuda
    assert torch.equal(model.weight, loaded.make_model(3, "cuda").weight)


def test_init_inputs_on_a_gpu_are_drawn_after_the_inputs(loaded):
    torch.cuda.manual_seed(0)
    with torch.device("cuda"):
        inputs, init_inputs = torch.randn(3), torch.randn(3)
    assert torch.equal(loaded.inputs(0, "cuda")[0], inputs)
    assert torch.equal(loaded.init_inputs("cuda")[0], init_inputs)


def test_streams_and_default_device_are_as_they_were(loaded):
    torch.manual_seed(7)
    before = torch.random.get_rng_state(), torch.cuda.get_rng_state()
    loaded.inputs(5, "cuda")
    loaded.make_model(5, "cuda")
    loaded.inputs(5)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert torch.equal(torch.cuda.get_rng_state(), before[1])
    assert not torch.zeros(1).is_cuda

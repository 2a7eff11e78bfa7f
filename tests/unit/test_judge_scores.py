"""Attention without its scores: the mean of what is not masked, and no trace afterwards."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from pike_hpc.evaluate.judge_scores import NoScores, flat_scores  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "softmax",
    [
        lambda s: F.softmax(s, dim=-1),
        lambda s: F.softmax(s, -1),
        lambda s: torch.softmax(s, -1),
        lambda s: s.softmax(dim=-1),
        lambda s: torch.softmax(input=s, dim=-1),
        nn.Softmax(dim=-1),
    ],
)
@pytest.mark.parametrize("mask", [float("-inf"), -100.0])
def test_what_is_not_masked_weighs_alike(softmax, mask):
    torch.manual_seed(0)
    scores = torch.randn(2, 4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), mask)
    before = softmax(scores)
    with torch.inference_mode(), flat_scores():
        found = softmax(scores)
    mean = torch.ones(4, 4).tril() / torch.arange(1, 5).view(4, 1)
    assert torch.allclose(found, mean.expand(2, 4, 4))
    assert torch.equal(softmax(scores), before)


@pytest.mark.parametrize("shape", [(2, 4, 5, 8), (2, 5, 8)], ids=["heads", "taken apart"])
@pytest.mark.parametrize("without_gradients", [torch.inference_mode, torch.no_grad])
def test_fused_attention_is_the_mean_of_the_values(shape, without_gradients):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, *shape)
    with without_gradients(), flat_scores():
        found = F.scaled_dot_product_attention(q, k, v)
    assert torch.allclose(found, v.mean(-2, keepdim=True).expand_as(v), atol=1e-6)


def test_a_module_with_a_fast_path_has_none_meanwhile():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(3, 5, 8)
    with torch.inference_mode(), flat_scores():
        found, weights = attention(x, x, x)
    assert torch.allclose(weights, torch.full((3, 5, 5), 0.2))
    assert torch.allclose(found[:, 0], found[:, 4], atol=1e-6)
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.relu(x @ x.mT),
        lambda x: F.softmax(torch.zeros_like(x), -1),
        lambda x: F.scaled_dot_product_attention(torch.zeros_like(x), x, x),
    ],
)
def test_without_scores_there_is_no_such_version(call):
    """Whatever is left is the rounding of other code paths, which no program must answer for."""
    x = torch.randn(2, 4, 5, 8)
    with pytest.raises(NoScores), torch.inference_mode(), flat_scores():
        call(x)
    assert torch.backends.mha.get_fastpath_enabled()


def test_an_error_of_the_model_stays_its_own():
    with pytest.raises(ZeroDivisionError), flat_scores():
        raise ZeroDivisionError
    assert torch.backends.mha.get_fastpath_enabled()

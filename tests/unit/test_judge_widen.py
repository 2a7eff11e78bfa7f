"""Float64 by operation: casts are widened, weights are not copied, choices are replayed."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from pike_hpc.evaluate.judge_weights import twin  # noqa: E402
from pike_hpc.evaluate.judge_widen import (  # noqa: E402
    InDouble,
    Recording,
    Unwidenable,
    default_dtype,
)

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")


def widely(model, *inputs, choices=()):
    with torch.inference_mode(), default_dtype(torch.float64), InDouble(list(choices)):
        return model(*(x.double() if x.is_floating_point() else x for x in inputs))


class Casting(nn.Module):
    """Narrows wherever it can."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(16, 16, dtype=torch.bfloat16)
        self.norm = nn.LayerNorm(16, dtype=torch.float16)

    def forward(self, x):
        x = self.up(x.to(torch.bfloat16)).half()
        x = F.softmax(self.norm(x), dim=-1, dtype=torch.float32)
        return x.bfloat16() + torch.full((16,), 0.1, dtype=torch.bfloat16)


def test_casts_inside_a_model_become_float64():
    torch.manual_seed(0)
    model, x = Casting().eval(), torch.randn(4, 16)
    plain = Casting().eval()
    plain.load_state_dict(model.state_dict())
    up, norm = plain.up.double(), plain.norm.double()
    exact = F.softmax(norm(up(x.double())), dim=-1) + 0.1
    found = widely(model, x)
    assert found.dtype == torch.float64
    assert torch.allclose(found, exact, rtol=1e-14, atol=0)
    assert not torch.allclose(model(x).double(), exact, rtol=1e-4, atol=0)
    assert model.up.weight.dtype == torch.bfloat16


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU(), nn.Flatten()),
        nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0),
    ],
    ids=lambda m: type(m).__name__,
)
def test_it_is_what_a_model_in_float64_says(model):
    torch.manual_seed(1)
    x = torch.randn(2, 3, 8, 8) if isinstance(model, nn.Sequential) else torch.randn(5, 2, 16)
    model.eval()
    found = widely(model, x)
    with torch.inference_mode():
        exact = model.double()(x.double())
    model.float()
    found, exact = (y[0] if isinstance(y, tuple) else y for y in (found, exact))
    assert found.dtype == torch.float64
    assert torch.allclose(found, exact, rtol=1e-12, atol=1e-14)


class Router(nn.Module):
    def forward(self, x):
        weights, chosen = torch.topk(x.to(torch.bfloat16), 2, dim=-1)
        return weights.sum(-1).float() + 100.0 * chosen[..., 0].float()


def test_choices_are_those_of_the_models_own_run():
    # In bfloat16 the two largest are equal and the first wins; in float64 it is the second.
    x = torch.tensor([[1.0, 1.0001, 0.0, 0.5]])
    model = Router()
    with torch.inference_mode(), Recording() as run:
        own = model(x)
    assert len(run.choices) == 1
    replayed = widely(model, x, choices=run.choices)
    assert torch.allclose(replayed, torch.tensor([2.0001 + 100.0 * run.choices[0][0, 0]]).double())
    assert abs(float(replayed - own)) < 0.1


@pytest.mark.parametrize(
    "choose",
    [
        lambda x: x.max(dim=1)[1],
        lambda x: x.min(dim=1, keepdim=True)[1],
        lambda x: x.sort(dim=-1)[1],
        lambda x: x.argmax(dim=-1),
        lambda x: x.argsort(dim=0),
        lambda x: x.topk(3, dim=0)[1],
        lambda x: x.sort(dim=1, stable=True, descending=True)[1],
    ],
)
def test_every_way_to_choose_is_replayed(choose):
    torch.manual_seed(3)
    ties = torch.randint(0, 3, (30, 30)).float()
    with torch.inference_mode(), Recording() as run:
        own = choose(ties)
    noisy = ties + torch.randn(30, 30) * 1e-6
    assert not torch.equal(choose(noisy), own)
    assert torch.equal(widely(choose, noisy, choices=run.choices), own)


CHOOSING = {
    "kthvalue": (lambda x: x.kthvalue(2, dim=0).values, True),
    "median": (lambda x: x.median(dim=1)[0], True),
    "nanmedian": (lambda x: x.nanmedian(dim=1)[0], True),
    "mode": (lambda x: x.mode(dim=1)[0], True),
    "cummax": (lambda x: x.cummax(dim=1)[1], True),
    "cummin": (lambda x: x.cummin(dim=1)[1], True),
    "searchsorted": (lambda x: torch.searchsorted(torch.arange(3.0), x), True),
    "bucketize": (lambda x: torch.bucketize(x, torch.arange(3.0)), True),
    "argmin": (lambda x: x.argmin(), True),
    "quantile": (lambda x: x.quantile(0.3, dim=1), True),
    "nanquantile": (lambda x: x.nanquantile(0.3, dim=1), True),
    "msort": (lambda x: x.msort(), True),
    "stable argsort": (lambda x: x.argsort(dim=1, stable=True), True),
    "a threshold": (lambda x: torch.where(x > 0, x, -1.0).round(), False),
    "a pool": (lambda x: F.max_pool2d(x[None].relu(), 2).amax(1).softmax(-1), False),
}


@pytest.mark.parametrize("name", CHOOSING)
def test_what_chooses_is_known_whether_it_is_replayed_or_not(name):
    choose, does = CHOOSING[name]
    with torch.inference_mode(), Recording() as run:
        choose(torch.randn(8, 8))
    assert run.chooses is does


def test_values_follow_the_replayed_choice():
    x = torch.tensor([[1.0, 2.0, 3.0], [6.0, 5.0, 4.0]])
    for dim, keep in ((0, True), (1, False), (-1, True)):
        with torch.inference_mode(), Recording() as run:
            own = x.max(dim=dim, keepdim=keep)
        found = widely(lambda y, d=dim, k=keep: y.max(dim=d, keepdim=k), x + 1, choices=run.choices)
        assert torch.equal(found[0], own.values.double() + 1)


def test_a_model_that_chooses_otherwise_or_reads_bits_is_not_widened():
    with pytest.raises(Unwidenable):
        widely(lambda x: x.topk(2).values, torch.randn(3), choices=[torch.tensor([0])])
    with pytest.raises(Unwidenable):
        widely(lambda x: x.argmax(), torch.randn(3))
    with pytest.raises(Unwidenable):
        widely(lambda x: x.view(torch.int32), torch.randn(4))


class Slicing(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 4, dtype=torch.bfloat16))

    def forward(self, x):
        return x @ self.w[:4].t() + self.w.view(4, 8)[:, :4] + self.w[0].unsqueeze(0)


def test_views_of_weights_are_widened_too():
    model, x = Slicing(), torch.randn(4, 4)
    with torch.inference_mode():
        exact = Slicing.double(twin(model, CPU, widen_weights=True))(x.double())
    assert torch.equal(widely(model, x), exact)


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("seen", torch.zeros(2, 4, dtype=torch.bfloat16), persistent=False)
        self.plain = torch.randn(4)

    def forward(self, x):
        self.seen[:1] = x * self.weight
        return self.seen[:1] + self.plain


def test_a_twin_shares_weights_and_owns_what_forward_writes():
    model, x = Remembering().eval(), torch.randn(1, 4)
    other = twin(model, CPU, widen_weights=False)
    exact = x.double() * model.weight.detach().double() + model.plain.double()
    assert torch.equal(widely(other, x), exact)
    assert other.weight.data_ptr() == model.weight.data_ptr()
    assert model.seen.abs().max() == 0
    assert model.plain.dtype == torch.float32
    wide = twin(model, CPU, widen_weights=True)
    assert wide.weight.dtype == torch.float64
    assert torch.equal(widely(wide, x), exact)

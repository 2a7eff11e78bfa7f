"""A forward in other arithmetic: every number rounded, or no choice known."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pike_hpc.evaluate.judge_arithmetic import Rounded, Unchosen  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _no_grad():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def in_bfloat16(make):
    with Rounded(torch.bfloat16):
        return make()


def test_every_number_is_rounded_on_its_way():
    x = torch.randn(64)
    found = in_bfloat16(lambda: torch.sigmoid(x + 1) * 3)
    assert found.dtype is torch.float32
    assert torch.equal(found, (torch.sigmoid((x + 1).bfloat16()) * 3).float())


def test_also_where_it_is_written_in_place_and_read_as_a_view():
    x = torch.randn(8, 8)
    y = in_bfloat16(lambda: (x * 1).t().expand(2, 8, 8).mul(3).add_(1e-3))
    assert torch.equal(y, y.bfloat16().float())


def test_weights_and_what_was_given_stay():
    layer, x = nn.Linear(8, 8), torch.randn(4, 8)
    before = layer.weight.clone(), x.clone()
    in_bfloat16(lambda: layer(x.view(2, 2, 8)) + layer.weight.t()[0])
    assert torch.equal(layer.weight, before[0])
    assert torch.equal(x, before[1])


def test_a_mask_of_the_lowest_number_stays_finite_and_infinity_what_it_is():
    ends = torch.tensor([torch.finfo(torch.float32).min, -torch.inf])
    with Rounded(torch.float16):
        assert (ends + 0).tolist() == [torch.finfo(torch.float16).min, -torch.inf]


@pytest.mark.parametrize(
    "choose",
    [lambda x: x.sort(), lambda x: x.topk(3), lambda x: x.max(0), lambda x: x.median(0)],
    ids=["sort", "topk", "max", "median"],
)
def test_what_was_chosen_stays_and_where_it_was_is_not_known(choose):
    x = torch.tensor([1.0, 2.0, 4.0, 8.0]).flip(0)
    with Unchosen():
        values, places = choose(x[[1, 0, 2, 3]])
    assert torch.equal(values, choose(x)[0])
    assert not places.any()


@pytest.mark.parametrize(
    ("choose", "right"),
    [
        (lambda x: x.sort()[0], [1, 2, 4]),
        (lambda x: x.max(), 4),
        (lambda x: x.argmax(), 0),
        (lambda x: x.min(0)[0], 1),
    ],
    ids=["sort", "max", "argmax", "min"],
)
def test_whole_numbers_that_were_found_stay_as_well(choose, right):
    with Unchosen():
        assert choose(torch.tensor([1, 4, 2])).tolist() == right

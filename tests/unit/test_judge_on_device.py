"""Poison, copies and differences: against plain arithmetic on the whole tensor."""

import math

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate import judge_link  # noqa: E402
from pike_hpc.evaluate.judge_on_device import PIECE, difference, poison, take  # noqa: E402
from pike_hpc.evaluate.layout import ITEM_BYTES, buffer_bytes, lay_out  # noqa: E402

pytestmark = pytest.mark.torch

DTYPES = sorted(ITEM_BYTES)


def random(dtype, *shape):
    torch.manual_seed(3)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(*shape, dtype=dtype if dtype.itemsize > 2 else torch.float32).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 100, shape).to(dtype)


def test_poison_is_that_of_host_buffers():
    slots = lay_out([(name, name, (3, 5)) for name in DTYPES])
    raw = torch.zeros(buffer_bytes(slots), dtype=torch.uint8)
    poison(raw, slots)
    assert bytes(raw.tolist()) == bytes(judge_link.poison(slots))


@pytest.mark.parametrize("name", DTYPES)
def test_poison_that_was_left_is_counted_for_every_dtype(name):
    dtype = getattr(torch, name)
    slots = lay_out([("y", name, (50,))])
    raw = torch.zeros(buffer_bytes(slots), dtype=torch.uint8)
    poison(raw, slots)
    answer = raw[: slots[0].size_bytes].view(dtype)
    truth = random(dtype, 50)
    assert difference(answer, truth).poisoned == 50
    answer[:43] = truth[:43]
    assert difference(answer, truth).poisoned == 7
    answer[:] = truth
    assert difference(answer, truth).poisoned == 0


def test_poison_is_counted_over_all_pieces():
    answer = torch.zeros(PIECE + 3)
    truth = answer.clone()
    answer.view(torch.int32)[[0, 1, PIECE]] = -1
    assert difference(answer, truth).poisoned == 3


def test_half_an_element_of_poison_is_not_poison():
    answer = torch.zeros(4, dtype=torch.complex128)
    answer.view(torch.int64)[:3] = -1
    assert difference(answer, answer.clone()).poisoned == 1


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("count", [1, 1000, PIECE, PIECE + 7])
def test_difference_of_floats_is_that_of_the_whole_in_float64(name, count):
    truth = random(torch.float64, count)
    answer = (truth + 1e-3 * random(torch.float64, count).flip(0)).to(getattr(torch, name))
    found = difference(answer, truth)
    apart = answer.double() - truth
    assert found.square_sum == pytest.approx(apart.square().sum().item(), rel=1e-9)
    assert found.max_abs == apart.abs().max().item()
    assert found.poisoned == 0


def test_the_last_element_of_the_last_piece_counts():
    truth = torch.zeros(2 * PIECE + 1)
    answer = truth.clone()
    answer[-1] = 3
    found = difference(answer, truth)
    assert (found.square_sum, found.max_abs) == (pytest.approx(9), 3)


@pytest.mark.parametrize("dtypes", [("complex64", "complex128"), ("complex64", "complex64")])
def test_complex_numbers_count_both_parts(dtypes):
    truth = random(getattr(torch, dtypes[1]), 9)
    answer = (truth + (3 - 4j)).to(getattr(torch, dtypes[0]))
    found = difference(answer, truth)
    assert found.square_sum == pytest.approx(9 * 25, rel=1e-6)
    assert found.max_abs == pytest.approx(4, rel=1e-6)


@pytest.mark.parametrize("name", ["int64", "int32", "uint8", "bool"])
def test_what_is_no_float_is_equal_or_wrong(name):
    truth = random(getattr(torch, name), 6, 50)
    answer = truth.clone()
    found = difference(answer, truth)
    assert (found.square_sum, found.max_abs) == (0, 0)
    answer[2, 3:5] ^= torch.ones((), dtype=answer.dtype)
    found = difference(answer, truth)
    assert (found.square_sum, found.max_abs) == (2, 1)


def test_integers_that_float64_takes_for_equal_are_told_apart():
    truth = torch.tensor([2**60])
    assert difference(truth + 1, truth).max_abs == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", [0, PIECE + 1])
def test_what_is_not_finite_is_never_a_small_difference(bad, where):
    truth = torch.zeros(PIECE + 2)
    answer = truth.clone()
    answer[where] = bad
    found = difference(answer, truth)
    assert not math.isfinite(found.square_sum)
    assert not math.isfinite(found.max_abs)
    assert math.isnan(difference(answer, answer).max_abs)


def test_an_empty_answer_is_right():
    found = difference(torch.zeros(0, 3), torch.zeros(0, 3))
    assert (found.square_sum, found.max_abs, found.poisoned) == (0, 0, 0)


def test_what_cannot_be_compared_is_said():
    with pytest.raises(ValueError, match=r"\(2, 3\) for a truth torch.float32 \(3, 2\)"):
        difference(torch.zeros(2, 3), torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"torch.int64 \(2,\) for a truth torch.float32"):
        difference(torch.zeros(2, dtype=torch.int64), torch.zeros(2))
    with pytest.raises(ValueError, match="contiguous"):
        difference(torch.zeros(2, 3).t(), torch.zeros(3, 2))


def test_what_was_taken_no_longer_follows_the_shared_bytes():
    shared = torch.full((9,), 7, dtype=torch.uint8)
    own = torch.zeros_like(shared)
    take(shared, own)
    shared.zero_()
    assert own.tolist() == [7] * 9

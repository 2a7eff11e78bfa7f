"""Which parts of an output are looked at one by one, held against sums that torch makes at once."""

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.pieces import LOCAL_ELEMENTS, Indices, pieces, stretches  # noqa: E402 - torch

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((100,), []),  # one number each
        ((15, 100), []),  # too few of an index
        ((16, 100), [1]),
        ((2048, 2, 32), [1, 2]),
        ((2048, 2, 64), [2]),  # a stretch holds one index of the others
        ((32, 16384, 1, 1), [1]),
        ((4, 512, 7, 7), [1, 2, 3]),
        ((4, 3, 7, 7), [1, 2, 3]),
        ((1, 3, 5), []),
        ((20, 2, 2, 2), [1, 2, 3]),
        ((64, 0), []),
        ((), []),
        ((2, 2, 1 << 20), []),  # repeats after more than a piece
        ((64, 1 << 15), [1]),
    ],
)
def test_the_dimensions_whose_indices_share_stretches(shape, dims):
    values = torch.zeros(shape)
    found = Indices.of(values)
    first = len(shape) - len(found.sizes)
    assert [first + dim for dim in found.looked] == dims
    assert found.step % LOCAL_ELEMENTS == 0


@pytest.mark.parametrize("shape", [(2048, 2, 32), (33, 5, 7, 7), (400, 3, 5)])
@pytest.mark.parametrize("calls", [(), (3,)])
def test_means_by_index_are_those_of_the_whole(shape, calls):
    values = torch.rand(*calls, *shape, dtype=torch.float64)
    indices = Indices.of(values[0] if calls else values)
    means = indices.means(indices.sums(values.reshape(*calls, -1)))
    assert len(means) == len(indices.looked) == len(shape) - 1
    for dim, found in enumerate(means, start=1):
        others = [len(calls) + other for other in range(len(shape)) if other != dim]
        assert torch.allclose(found, values.mean(dim=others))


def test_sums_over_pieces_add_up():
    values = torch.rand(6000, 2, 50)
    indices = Indices.of(values)
    sums = [indices.sums(piece) for (piece,) in pieces(values, step=indices.step)]
    assert len(sums) > 2
    assert torch.allclose(indices.means(sum(sums))[0], values.double().mean(dim=(0, 2)))


def test_complex_numbers_are_pairs():
    assert Indices.of(torch.zeros(64, 5, dtype=torch.complex64)).sizes == (10,)


def test_stretches_end_with_a_short_one():
    assert stretches(torch.ones(2, 130)).tolist() == [[64.0, 64.0, 2.0]] * 2
    assert stretches(torch.ones(64)).tolist() == [64.0]

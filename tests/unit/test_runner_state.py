"""What a model holds is put back as it was, whatever kind of tensor it is."""

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.runner import State  # noqa: E402

pytestmark = pytest.mark.torch


class Holds(torch.nn.Module):
    """An expanded mask, a sparse table in a list, and a count."""

    def __init__(self):
        super().__init__()
        self.mask = torch.ones(8, 8).tril().expand(4, 8, 8)
        self.tables = [torch.eye(4).to_sparse(), torch.zeros(3)]
        self.register_buffer("count", torch.zeros(()))


def test_what_cannot_be_written_is_left_alone_and_the_rest_comes_back():
    model = Holds()
    state = State(model)
    mask, table = model.mask, model.tables[0]
    model.tables[1].add_(1.0)
    model.count.add_(1.0)
    model.mask, model.tables[0] = None, None
    state.restore()
    assert model.mask is mask
    assert torch.equal(mask[3], torch.ones(8, 8).tril())
    assert model.tables[0] is table
    assert torch.equal(table.to_dense(), torch.eye(4))
    assert not model.tables[1].any()
    assert not model.count


def test_every_kind_has_a_size():
    assert State.size_bytes(Holds()) == 4 * (4 * 8 * 8 + 16 + 3 + 1)

"""Errors of answers on a GPU against truths on the host: the same as if both lay on one side."""

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.correctness import (  # noqa: E402
    compare,
    correlation,
    grain_of,
    part_outside,
    unequal,
)
from pike_hpc.evaluate.pieces import PIECE  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

ROWS, COLUMNS = 1200, 768


def test_where_tensors_lie_changes_no_error(device):
    assert 3 * PIECE["cpu"] < ROWS * COLUMNS, "or one piece would hold all"
    made = torch.Generator().manual_seed(1)
    truths = [torch.randn(ROWS, COLUMNS, generator=made, dtype=torch.float64) for _ in range(3)]
    shipped = [t.float() for t in truths]
    answers = [s * (1 + 1e-4) for s in shipped]
    answers[0][700, 5] += 0.25
    there = [a.cuda() for a in answers]
    grains = [grain_of(truths, s, 1.0, 1e-6) for s in (shipped, [s.cuda() for s in shipped])]
    assert torch.allclose(grains[0].least, grains[1].least.cpu())
    assert grains[0].indices.sizes == grains[1].indices.sizes == (COLUMNS,)
    assert torch.allclose(grains[0].by_index[0], grains[1].by_index[0].cpu())
    for grain in (None, *grains):
        here = compare(answers[0], truths[0], 1.0, grain)
        mixed = compare(there[0], truths[0], 1.0, grain)
        for name in ("error", "spike", "local", "local_half"):
            assert getattr(mixed, name) == pytest.approx(getattr(here, name), rel=1e-9), name
    assert correlation(there, truths) == pytest.approx(correlation(answers, truths), rel=1e-9)
    assert part_outside(there[0], truths[0], 1e-2) == part_outside(answers[0], truths[0], 1e-2) > 0
    assert unequal(there[0] > 0, answers[0] > 0.1) == unequal(answers[0] > 0, answers[0] > 0.1)

"""How long is measured: a search's timings on a GPU are short, since all other lanes wait."""

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.judge_plan import stop_rule  # noqa: E402 - torch
from pike_hpc.evaluate.statistics import LOOSE, Estimate, decide  # noqa: E402 - torch

pytestmark = pytest.mark.torch


def found(half_width):
    return Estimate(
        speedup=1.0,
        ci95=(1.0 - half_width, 1.0 + half_width),
        candidate_ms=1.0,
        reference_ms=1.0,
        windows=100,
        half_width=half_width,
    )


@pytest.mark.parametrize(
    ("device", "again", "budget_s", "most_s"),
    [
        ("cuda", False, 0.7, 0.7),
        ("cuda", True, 4.0, 12.0),
        ("cpu", False, 2.0, 6.0),
        ("cpu", True, 4.0, 12.0),
    ],
)
def test_how_long_is_measured(device, again, budget_s, most_s):
    rule = stop_rule(device, again=again)

    def stops(half_width, spent_s):
        return decide(found(half_width), 10, spent_s, rule).stop

    assert stops(0.005, 0.0), "narrow enough"
    assert not stops(0.5 * LOOSE, 0.99 * budget_s)
    assert stops(0.5 * LOOSE, budget_s)
    assert not stops(2 * LOOSE, 0.99 * most_s)
    assert stops(2 * LOOSE, most_s)

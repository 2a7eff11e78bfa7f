"""Timed answers beside the reference runner's: the quick look never says more than the full one."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.correctness import Grain, LeafScale, grain_of  # noqa: E402 - torch
from pike_hpc.evaluate.judge_agreement import (  # noqa: E402 - torch
    Agreement,
    Tolerance,
    agrees,
    harmless,
)
from pike_hpc.evaluate.judge_memory import views  # noqa: E402 - torch
from pike_hpc.evaluate.layout import ALIGNMENT, buffer_bytes, lay_out  # noqa: E402 - torch
from pike_hpc.records import Tier  # noqa: E402 - torch

pytestmark = pytest.mark.torch

SHAPE = (40, 96)
PLAIN = LeafScale(signal=1.0, limits={Tier.FP32: 1e-3})


def agreement(slots, scale=PLAIN, *, pike=False):
    count = len(slots)
    tolerance = Tolerance(scales=(scale,) * count, limits=(1e-3,) * count, local=(1e-2,) * count,
                          pike=pike)  # fmt: skip
    return Agreement(tolerance, slots)


def rows(slots, calls):
    """Room for so many answers, and its leaves by call."""
    size = -(-buffer_bytes(slots) // ALIGNMENT) * ALIGNMENT
    raw = torch.zeros(calls, size, dtype=torch.uint8)
    return raw, [views(slots, row) for row in raw]


def grown(seed, growth):
    """Answers whose last dimension grows by orders of magnitude."""
    generator = torch.Generator().manual_seed(seed)
    along = torch.logspace(-growth, 0, SHAPE[1], dtype=torch.float64)
    return [torch.randn(SHAPE, generator=generator, dtype=torch.float64) * along for _ in range(3)]


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 1000),
    growth=st.floats(0, 6),
    noise=st.sampled_from([0.0, 1e-7, 1e-3]),
    bound=st.floats(1e-6, 1e-1),
    local=st.floats(1e-6, 1.0),
)
def test_whatever_is_harmless_agrees_in_full(seed, growth, noise, bound, local):
    truths = grown(seed, growth)
    shipped = [t * (1 + noise * torch.randn_like(t)) for t in truths]
    signal = float((truths[0] - truths[1]).square().mean().sqrt())
    grain = grain_of(truths, shipped, signal, noise / 2)
    scale = LeafScale(signal=signal, limits={Tier.FP32: bound}, grain=grain)
    most = harmless(scale, bound, local)
    signs = torch.randn(SHAPE).sign()
    for pattern in (torch.ones(SHAPE), signs):
        assert agrees(truths[0] + most * pattern, truths[0], scale, bound, local)


def test_the_smallest_scale_of_a_stretch_and_of_a_column_counts():
    least = torch.tensor([64.0, 64e-8])
    assert harmless(PLAIN, 1e-3, 1e-1) == pytest.approx(0.98e-3)
    stretches = LeafScale(signal=1.0, limits={}, grain=Grain(least=least, columns=None))
    assert harmless(stretches, 1e-3, 1e-1) == pytest.approx(0.98e-5)
    columns = Grain(least=least[:1], columns=torch.tensor([1.0, 1e-10]))
    assert harmless(LeafScale(signal=1.0, limits={}, grain=columns), 1e-3, 1e-1) == pytest.approx(
        0.98e-6
    )
    assert harmless(LeafScale(signal=0.0, limits={}), 1.0, 1.0) == 0.0


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "complex64"])
@pytest.mark.parametrize("calls", [1, 3])
def test_one_wrong_call_of_a_window_is_seen(dtype, calls):
    slots = lay_out([("y", dtype, (2, 100)), ("z", "float32", ())])
    answers, mine = rows(slots, calls)
    references, its = rows(slots, calls)
    for leaves in (*mine, *its):
        leaves[0].fill_(0.5)
    judge = agreement(slots)
    assert judge.holds(answers, references)
    mine[-1][1].fill_(1e-4)
    assert judge.holds(answers, references), "within a thousandth of the signal"
    mine[-1][0].fill_(0.6)
    assert not judge.holds(answers, references)
    mine[-1][0].fill_(math.nan)
    assert not judge.holds(answers, references)


def test_few_whole_numbers_may_differ_and_a_float_beside_them_counts():
    slots = lay_out([("i", "int64", (5000,)), ("y", "float32", (10,))])
    answers, mine = rows(slots, 2)
    references, _ = rows(slots, 2)
    judge = agreement(slots)
    mine[0][0][:5] = 7
    assert judge.holds(answers, references)
    mine[0][0][:6] = 7
    assert not judge.holds(answers, references)
    mine[0][0][:6] = 0
    mine[1][1].fill_(1.0)
    assert not judge.holds(answers, references)


def test_legacy_lets_a_hundredth_of_an_output_miss_pike_s_rule():
    slots = lay_out([("y", "float32", (1000,))])
    answers, mine = rows(slots, 1)
    references, _ = rows(slots, 1)
    judge = agreement(slots, pike=True)
    mine[0][0][:9] = 1.0
    assert judge.holds(answers, references)
    mine[0][0][:11] = 1.0
    assert not judge.holds(answers, references)

"""The measure of error: scale-free, blind to nothing that matters."""

import math
from dataclasses import replace
from statistics import NormalDist

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

from pike_hpc.evaluate.correctness import (  # noqa: E402
    CAP,
    FLOORS,
    HALF_CAP,
    HALF_K,
    LOCAL_K,
    LeafScale,
    allclose,
    are_ties,
    compare,
    correlation,
    grain_of,
    in_half,
    limit,
    rms,
    signal_of,
    tier_of,
)
from pike_hpc.evaluate.pieces import Indices  # noqa: E402
from pike_hpc.records import Tier  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def truths():
    torch.manual_seed(3)
    return [torch.randn(40, 50, dtype=torch.float64) for _ in range(3)]


def test_the_error_is_the_difference_over_the_signal(truths):
    signal = signal_of(truths)
    assert signal == pytest.approx(math.sqrt(2), rel=0.05)
    off = truths[0] + 0.01 * signal
    found = compare(off, truths[0], signal)
    assert found.error == pytest.approx(0.01)
    assert found.spike == pytest.approx(0.01)


@pytest.mark.parametrize("factor", [1e-20, 1e-3, 1e14])
def test_scaling_everything_changes_nothing(truths, factor):
    scaled = [t * factor for t in truths]
    wrong = truths[0] * 1.001
    here = compare(wrong, truths[0], signal_of(truths))
    there = compare(wrong * factor, scaled[0], signal_of(scaled))
    assert there.error == pytest.approx(here.error, rel=1e-6)


def test_trivial_answers_are_far_beyond_every_limit(truths):
    signal = signal_of(truths)
    for wrong in (torch.zeros_like(truths[0]), sum(truths) / 3, truths[1]):
        assert compare(wrong, truths[0], signal).error > 10 * CAP


def test_what_is_not_finite_is_infinitely_wrong(truths):
    for value in (math.nan, math.inf, -math.inf):
        wrong = truths[0].clone()
        wrong[3, 4] = value
        assert compare(wrong, truths[0], 1.0).error == math.inf


def test_one_wrong_element_is_a_spike(truths):
    wrong = torch.zeros(1_000_000, dtype=torch.float64)
    truth = wrong.clone()
    wrong[777_777] = 60.0
    found = compare(wrong, truth, 1.0)
    assert found.spike == 60.0
    assert found.error == pytest.approx(0.06)


def test_no_signal_asks_for_equality(truths):
    assert compare(truths[0], truths[0], 0.0).error == 0.0
    assert compare(truths[0] + 1e-9, truths[0], 0.0).error == math.inf


def test_complex_numbers_are_pairs():
    a = torch.tensor([3 + 4j, 0j])
    assert rms(a) == pytest.approx(2.5)
    assert compare(a, a + 1j, 1.0).error == pytest.approx(math.sqrt(0.5))


def test_correlation_sees_who_ignores_the_input(truths):
    assert correlation(truths, truths) == pytest.approx(1.0)
    assert abs(correlation([truths[0]] * 3, truths)) < 1e-6
    assert abs(correlation(truths[::-1], truths)) < 0.6


def test_limits_have_a_floor_and_a_cap():
    assert limit(Tier.FP32, 1e-9, 10**6) == 1e-5
    assert limit(Tier.FP32, 1e-4, 10**6) == pytest.approx(3e-4)
    assert limit(Tier.FP32, 1e-4, 10) == pytest.approx(1e-3)
    assert limit(Tier.TF32, 0.5, 10**6) == limit(Tier.FP32, 0.5, 10) == CAP


@pytest.mark.parametrize("elements", [10, 10**6])
def test_half_reaches_beyond_the_cap_where_the_reference_itself_comes_near_it(elements):
    assert limit(Tier.HALF, 0.0099, elements) == CAP
    assert limit(Tier.HALF, 0.016, elements) == pytest.approx(HALF_K * 0.016)
    assert limit(Tier.HALF, 0.016, elements) > CAP
    assert limit(Tier.HALF, 0.5, elements) == HALF_CAP


def test_the_strictest_tier_that_all_leaves_earn():
    scale = LeafScale(signal=1.0, limits={Tier.FP32: 1e-5, Tier.TF32: 1e-3, Tier.HALF: 1e-2})
    no_half = LeafScale(signal=1.0, limits={Tier.FP32: 1e-5})
    assert tier_of([1e-6, 1e-6], [scale, scale]) is Tier.FP32
    assert tier_of([1e-6, 5e-3], [scale, scale]) is Tier.HALF
    assert tier_of([1e-6, 5e-2], [scale, scale]) is None
    assert tier_of([5e-3, 1e-6], [scale, no_half]) is None


def test_allclose_compares_shapes_and_refuses_nan():
    a = torch.ones(4)
    assert allclose(a, a + 0.01, 1e-2)
    assert not allclose(a, a + 0.03, 1e-2)
    assert not allclose(torch.ones(1, 4), a, 1e-2)
    assert not allclose(a * math.nan, a * math.nan, 1e-2)
    assert allclose(torch.tensor([1, 2]), torch.tensor([1, 2]), 1e-4)
    assert not allclose(torch.tensor([1, 2]), torch.tensor([1, 3]), 1e-4)


def test_a_wrong_stretch_shows_however_large_the_output_is():
    torch.manual_seed(0)
    truth = torch.randn(512, 4096, dtype=torch.float64)
    answer = truth.clone()
    answer[100:164, 64:128] = 0.0
    found = compare(answer, truth, signal=1.4)
    assert found.error < 0.05
    assert 0.5 < found.local < 1.5


@pytest.mark.parametrize("count", [1, 63, 64, 65, 1000])
def test_every_element_is_in_a_stretch(count):
    truth = torch.ones(count, dtype=torch.float64)
    for place in {0, count // 2, count - 1}:
        answer = truth.clone()
        answer[place] += 1.0
        assert compare(answer, truth, signal=1.0).local == pytest.approx(1 / 8)


def test_a_large_stretch_is_measured_by_its_own_size():
    truth = torch.ones(128, dtype=torch.float64)
    truth[:64] = 1e6
    assert compare(truth * 1.001, truth, signal=1.0).local == pytest.approx(0.001)


@pytest.fixture
def fading():
    """Three answers whose channels have gains from 1 to 1e-8, and float32's own version of them."""
    torch.manual_seed(5)
    gain = torch.logspace(0, -8, 256, dtype=torch.float64)
    truths = [torch.randn(40, 256, dtype=torch.float64) * gain for _ in range(3)]
    return truths, [t * (1 + 1e-7 * torch.randn_like(t)) for t in truths]


def graded(truths, references):
    signal = signal_of(truths)
    pairs = zip(references, truths, strict=True)
    error = max(compare(r, t, signal).error for r, t in pairs)
    return signal, grain_of(truths, references, signal, error)


def test_a_small_stretch_is_measured_by_its_own_signal(fading):
    truths, references = fading
    signal, grain = graded(truths, references)
    answer = truths[0].clone()
    answer[:, 192:] = 0.0
    assert compare(answer, truths[0], signal).local < 1e-4
    assert compare(answer, truths[0], signal, grain).local > 0.3
    assert compare(references[0], truths[0], signal, grain).local < 1e-6


def test_what_is_exact_and_moves_is_measured_by_what_it_moves_by():
    torch.manual_seed(5)
    whole = [torch.randn(40, 64, dtype=torch.float64).round() for _ in range(3)]
    large = [1e7 * torch.randn(40, 64, dtype=torch.float64) for _ in range(3)]
    still = torch.zeros(40, 64, dtype=torch.float64)
    truths = [torch.cat([w, x, still], 1) for w, x in zip(whole, large, strict=True)]
    references = [
        torch.cat([w, x * (1 + 1e-7 * torch.randn_like(x)), still], 1)
        for w, x in zip(whole, large, strict=True)
    ]
    signal, grain = graded(truths, references)
    answer = truths[0].clone()
    answer[:, :64] = 0.0
    assert compare(answer, truths[0], signal).local < 1e-6
    assert compare(answer, truths[0], signal, grain).local > 0.3
    dead = truths[0].clone()
    dead[:, 128:] = 0.1  # who has it otherwise is off by no more than rounding is elsewhere
    assert compare(dead, truths[0], signal, grain).local < 1e-6


def test_beside_large_numbers_that_are_exact_the_others_count():
    torch.manual_seed(5)
    small = [torch.randn(40, 64, dtype=torch.float64) for _ in range(3)]
    truths = [torch.cat([x, 2.0**40 * x.round()], 1) for x in small]
    references = [t.clone() for t in truths]
    for r, x in zip(references, small, strict=True):
        r[:, :64] = x * (1 + 1e-7 * torch.randn_like(x))
    signal, grain = graded(truths, references)
    answer = truths[0].clone()
    answer[:, :64] = 0.0
    assert compare(answer, truths[0], signal, grain).local > 0.1
    assert compare(references[1], truths[1], signal, grain).local < 1e-6


def test_tier_half_lets_go_what_float16_makes_zero(fading):
    truths, references = (2.0**-8 * torch.stack(x) for x in fading)
    signal, grain = graded(truths, references)
    answer = truths[0].half()
    assert (answer[:, -64:] == 0).any()
    found = compare(answer, truths[0], signal, grain)
    assert found.local > 0.3
    assert found.local_half < 0.1
    assert compare(answer, truths[0], signal, in_half(grain, signal)).local == found.local_half
    bare = replace(grain, indices=Indices.of(truths[0].reshape(-1)), by_index=(), still_by_index=())
    by_stretch = compare(answer, truths[0], signal, in_half(bare, signal)).local
    assert compare(answer, truths[0], signal, bare).local_half == by_stretch
    answer[:, 128:192] = 0.0  # 1e-6 to 1e-9 of a signal: float16 holds the first half of it
    assert compare(answer, truths[0], signal, grain).local_half > 0.3


def rarely_alive(seed, dtype):
    """Answers of a convolution behind a ReLU that lets one in fifteen live, in some arithmetic."""
    made = torch.Generator().manual_seed(seed)
    kernel = torch.randn(32, 8, 3, 3, generator=made) / 15
    bias = 0.3 * torch.randn(32, 1, 1, generator=made) - 1.0
    inputs = [torch.randn(4, 8, 34, 34, generator=made) for _ in range(3)]
    return [
        torch.relu(F.conv2d(x.to(dtype), kernel.to(dtype)).to(bias) + bias).double()
        if dtype is not torch.float64
        else torch.relu(F.conv2d(x.double(), kernel.double()) + bias.double())
        for x in inputs
    ]


def test_at_tier_half_another_one_may_live_among_the_dead():
    strict = 0
    for seed in range(12):
        truths = rarely_alive(seed, torch.float64)
        assert 0.03 < (truths[0] > 0).double().mean() < 0.12
        signal, grain = graded(truths, rarely_alive(seed, torch.float32))
        for answer, truth in zip(rarely_alive(seed, torch.bfloat16), truths, strict=True):
            found = compare(answer, truth, signal, grain)
            strict += found.local > LOCAL_K * FLOORS[Tier.HALF]
            assert found.local_half < LOCAL_K * FLOORS[Tier.HALF]
    assert strict, "or nothing had to be let go"


@pytest.mark.parametrize("part", [0.02, 0.01])
def test_but_no_channel_that_lives_so_rarely_may_be_left_out(part):
    torch.manual_seed(5)
    threshold = NormalDist().inv_cdf(1.0 - part)
    truths = [torch.relu(torch.randn(4, 32, 32, 32, dtype=torch.float64)) for _ in range(3)]
    for truth in truths:
        truth[:, 5] = 0.5 * torch.relu(torch.randn(4, 32, 32, dtype=torch.float64) - threshold)
    references = [t * (1 + 1e-7 * torch.randn_like(t)) for t in truths]
    signal, grain = graded(truths, references)
    answer = truths[0].clone()
    answer[:, 5] = 0.0
    assert compare(answer, truths[0], signal, grain).local_half > LOCAL_K * FLOORS[Tier.HALF]


def test_nor_is_the_rest_of_an_output_of_any_account_there():
    """What lives among the dead sets the scale, however large what lies beside it is."""
    torch.manual_seed(5)
    alive = [torch.relu(torch.randn(64, 128, dtype=torch.float64)) for _ in range(3)]
    truths = [torch.cat([1e4 * torch.randn_like(a), a], 1) for a in alive]
    references = [t * (1 + 1e-7 * torch.randn_like(t)) for t in truths]
    signal, grain = graded(truths, references)
    answer = truths[0].clone()
    answer[:, 128:] = 0.0
    assert compare(answer, truths[0], signal, grain).local_half > LOCAL_K * FLOORS[Tier.HALF]


def test_but_not_what_is_most_of_an_answer(fading):
    truths, references = (2.0**-30 * torch.stack(x) for x in fading)
    signal, grain = graded(truths, references)
    found = compare(torch.zeros_like(truths[0]), truths[0], signal, grain)
    assert min(found.error, found.local_half) > 0.5


def test_a_small_channel_is_measured_by_its_own_signal(fading):
    truths, references = fading
    signal, grain = graded(truths, references)
    answer = truths[0].clone()
    answer[:, 255] = 0.0
    assert compare(answer, truths[0], signal, grain).local > 0.3


@pytest.mark.parametrize("shape", [(2048, 2, 32), (2048, 4, 4, 4), (16, 32, 2, 64, 1, 1)])
def test_nor_does_one_of_a_dimension_in_between_hide_beside_large_ones(shape):
    torch.manual_seed(7)
    large = 2.0**20 * (torch.arange(shape[-2 if shape[-1] > 1 else 2]) != 1)
    dim = len(shape) - 2 if shape[-1] > 1 else 2
    by_index = [1] * len(shape)
    by_index[dim] = len(large)
    sizes = large.clamp(min=1).double().view(by_index)
    truths = [torch.randn(shape, dtype=torch.float64) * sizes for _ in range(3)]
    signal, grain = graded(truths, [t.float() for t in truths])
    assert compare(truths[0].float(), truths[0], signal, grain).local < 1e-5
    answer = truths[0].clone()
    answer.select(dim, 1).zero_()
    found = compare(answer, truths[0], signal, grain)
    assert found.error < 1e-5
    assert found.local > 0.5


def test_whole_numbers_that_differ_in_one_index_are_no_ties():
    different = torch.zeros(1024, 8, 8, dtype=torch.bool)
    different[:, torch.arange(4), torch.arange(4)] = True  # four of each stretch, one of an index
    assert are_ties(different, 1.0)
    different.zero_()
    different[:, 1, :4] = True  # as many, half of what has one index
    assert not are_ties(different, 1.0)


def test_rounding_of_any_tier_passes_where_the_reference_rounds_alike(fading):
    truths, references = fading
    # Small differences of large numbers: every arithmetic is off by the same everywhere.
    uniform = [t + 1e-7 * torch.randn_like(t) for t in truths]
    for tier, noise in ((Tier.TF32, 3e-4), (Tier.HALF, 3e-3)):
        for shipped, alike in ((references, truths[0]), (uniform, torch.ones_like(truths[0]))):
            signal, grain = graded(truths, shipped)
            answer = truths[0] + noise * signal * alike * torch.randn_like(alike)
            found = compare(answer, truths[0], signal, grain)
            assert found.local < 10 * limit(tier, 0.0, 10**6)


def test_where_the_reference_makes_no_error_the_signal_counts():
    torch.manual_seed(6)
    truths = [torch.randn(40, 256, dtype=torch.float64).clamp(min=0) for _ in range(3)]
    for truth in truths:
        truth[:, 64:128] = 0.0  # dead behind a ReLU, in every arithmetic but a coarse one
    references = [t * (1 + 1e-7 * torch.randn_like(t)) for t in truths]
    signal, grain = graded(truths, references)
    answer = truths[0].clone()
    answer[0, 64] = 1e-3
    assert compare(answer, truths[0], signal, grain).local < 1e-3


def test_without_noise_or_signal_there_is_no_grain(truths):
    assert grain_of(truths, truths, 1.0, 0.0) is None
    assert grain_of(truths, truths, 0.0, 1e-7) is None


def test_a_channel_that_is_off_shows_among_its_neighbours():
    torch.manual_seed(0)
    truth = torch.randn(32, 4096, dtype=torch.float64)
    answer = truth.clone()
    answer[:, 77] *= 0.7
    assert 0.15 < compare(answer, truth, signal=1.4).local < 0.3


@pytest.mark.parametrize("shape", [(1000,), (), (7, 3), (500, 3), (64, 5, 7), (2, 70001)])
def test_pieces_of_any_shape_are_compared_whole(shape):
    torch.manual_seed(0)
    truths = [torch.randn(shape, dtype=torch.float64) for _ in range(2)]
    references = [t * (1 + 1e-7) for t in truths]
    grain = grain_of(truths, references, 1.4, 1e-7)
    found = compare(truths[0] * 1.01, truths[0], 1.4, grain)
    assert found.error == pytest.approx(0.01 * rms(truths[0]) / 1.4)
    assert 0.0 < found.local < 0.02


def test_few_whole_numbers_far_apart_may_differ():
    differ = torch.zeros(100, 1000, dtype=torch.bool)
    assert are_ties(differ, 0.0)
    differ[range(10), range(10)] = True
    assert are_ties(differ, 1e-4)
    assert not are_ties(differ, 0.9e-4)
    assert not are_ties(torch.ones(1, dtype=torch.bool), 0.5)
    assert are_ties(torch.zeros(0, dtype=torch.bool), 0.0)


def test_neighbours_that_differ_are_no_ties():
    differ = torch.zeros(1 << 20, dtype=torch.bool)
    differ[640:644] = True
    assert are_ties(differ, 1e-3)
    differ[640:704] = True
    assert not are_ties(differ, 1e-3)
    column = torch.zeros(4096, 1025, dtype=torch.bool)
    column[:, -1] = True
    assert not are_ties(column, 1e-3)
    column[512:] = False
    assert are_ties(column, 1e-3)

"""The floor of a task: below it nobody, above it everybody."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pike_hpc.evaluate.device import slug
from pike_hpc.evaluate.physics import (
    CONSTANT_MS,
    MARGIN,
    PEAKS,
    Work,
    bounds_copies,
    impossible,
    limits,
    peaks_of,
    sure_part,
)
from pike_hpc.records import Tier, Timing

MIB = 1 << 20
H200, H200_L2 = PEAKS["nvidia-h200"], 60 * MIB

HONEST_H200 = {
    "1": (0.0162, 0, 0),
    "6": (3.0526, 918, 980),
    "8": (0.1116, 5, 122),
    "13": (0.1185, 61, 30),
    "14": (1.5755, 61, 428),
    "17": (0.1108, 5, 245),
    "21": (1.4733, 214, 91),
    "25": (5.0909, 459, 918),
    "31": (1.2179, 16, 16),
    "43": (1.9512, 192, 192),
    "44": (3.3288, 192, 192),
    "48": (0.0743, 4, 4),
    "50": (0.6609, 48, 48),
}
"""Task of level3-pike: the fastest of eager, compiled, half precision and PIKE's published program
on one H200, in ms (2026-11-20), and MiB of inputs and outputs."""


def work(input_mib=0.0, output_mib=0, flops=0):
    return Work(input_bytes=input_mib * MIB, output_bytes=output_mib * MIB, flops=flops)


def timing(candidate_ms, ci=0.01):
    return Timing(
        candidate_ms=candidate_ms,
        reference_ms=10.0,
        speedup=10.0 / candidate_ms,
        ci95=(10.0 / candidate_ms * (1 - ci), 10.0 / candidate_ms * (1 + ci)),
        windows=100,
    )


@pytest.mark.parametrize("task", HONEST_H200)
def test_no_honest_program_is_below_its_floor(task):
    best_ms, input_mib, output_mib = HONEST_H200[task]
    found = limits(work(input_mib, output_mib), H200, H200_L2, Tier.FP32)
    assert best_ms > 2 * found.floor_ms
    assert not impossible(timing(best_ms), found.floor_ms)


def test_what_fits_the_cache_need_not_move():
    assert limits(work(60, 60), H200, H200_L2, Tier.FP32).floor_ms == 0.0
    beyond = limits(work(60 + 480, 60 + 960), H200, H200_L2, Tier.FP32)
    assert beyond.floor_ms == pytest.approx(1440 * MIB / 4800e9 * 1e3)


def test_below_the_floor_is_impossible_and_at_it_is_not():
    floor_ms = 1.0
    assert not impossible(timing(1.0), floor_ms)
    assert not impossible(timing(1.0 / MARGIN), floor_ms)
    assert impossible(timing(0.9), floor_ms)
    assert impossible(timing(0.01), floor_ms)


def test_an_error_of_the_protocol_s_constant_refuses_nobody():
    floor_ms = 0.02
    assert not impossible(timing(floor_ms - 0.9 * CONSTANT_MS), floor_ms)


def test_a_time_that_is_a_little_uncertain_refuses_nobody():
    assert impossible(timing(0.9, ci=0.01), 1.0)
    assert not impossible(timing(0.9, ci=0.08), 1.0)


def test_times_that_vary_excuse_no_more_than_a_little():
    assert not impossible(timing(0.86, ci=0.5), 1.0)
    assert impossible(timing(0.84, ci=0.5), 1.0)


def test_operations_are_a_goal_and_no_floor():
    found = limits(work(flops=989 * 10**9), H200, H200_L2, Tier.HALF)
    assert (found.floor_ms, found.roofline_ms) == (0.0, pytest.approx(1.0))
    strict = limits(work(flops=989 * 10**9), H200, H200_L2, Tier.FP32)
    assert strict.roofline_ms == pytest.approx(3.0)


def test_a_gpu_is_known_by_the_name_its_driver_gives():
    assert peaks_of("NVIDIA H200") is H200
    assert peaks_of("NVIDIA A100-SXM4-40GB").memory_gb_s == 1555
    assert peaks_of("NVIDIA A100-SXM4-40GB MIG 1g.5gb") is None
    assert peaks_of("NVIDIA GeForce GTX 1080 Ti") is None
    assert peaks_of("cpu") is None


@pytest.mark.parametrize("kind", PEAKS)
def test_peaks_are_of_the_size_that_gpus_have(kind):
    peaks = PEAKS[kind]
    assert slug(kind) == kind
    assert 500 < peaks.memory_gb_s < 10_000
    assert 3 < peaks.half_tflops / peaks.fp32_tflops < 30
    assert peaks.source


@given(st.integers(1, 64), st.data())
def test_the_sure_part_is_what_the_binomial_bound_says(trials, data):
    hits = data.draw(st.integers(0, trials))
    part = sure_part(hits, trials)
    assert 0 <= part <= hits / trials
    if hits == trials:
        assert part == pytest.approx(0.01 ** (1 / trials), abs=1e-6)


def test_the_sure_part_is_seldom_too_large():
    rng, matters, trials = random.Random(1), 0.6, 32
    draws = [sum(rng.random() < matters for _ in range(trials)) for _ in range(2000)]
    wrong = sum(sure_part(hits, trials) > matters for hits in draws)
    assert wrong / len(draws) < 0.02


@given(st.floats(1e-3, 100), st.floats(0, 100), st.floats(0, 0.5))
def test_a_slower_candidate_is_never_more_impossible(candidate_ms, floor_ms, ci):
    if impossible(timing(candidate_ms * 2, ci), floor_ms):
        assert impossible(timing(candidate_ms, ci), floor_ms)
    assert not impossible(timing(max(candidate_ms, floor_ms), ci), floor_ms)


@pytest.mark.parametrize(
    ("megabytes_in", "megabytes_out", "bounds"),
    [(200, 200, True), (0, 32, False), (32, 32, False), (100, 100, False), (16, 500, True)],
)
def test_the_floor_bounds_copies_where_most_of_the_bytes_are_beyond_the_cache(
    megabytes_in, megabytes_out, bounds
):
    work = Work(input_bytes=megabytes_in * 1e6, output_bytes=megabytes_out * 10**6, flops=0)
    assert bounds_copies(work, H200_L2) is bounds


def test_where_no_data_sheet_is_known_nothing_bounds_copies():
    assert not bounds_copies(None, 0)


@given(mb=st.integers(1, 4000), l2_mb=st.integers(1, 128))
def test_who_saves_copies_that_are_bounded_earns_at_most_five_times(mb, l2_mb):
    """The constant copies input and output once each: four times the bytes cross the bus."""
    work = Work(input_bytes=mb * 1e6, output_bytes=mb * 10**6, flops=0)
    if bounds_copies(work, l2_mb * 10**6):
        floor_ms = limits(work, H200, l2_mb * 10**6, Tier.FP32).floor_ms
        copies_ms = 2 * 2 * mb * 1e6 / (0.75 * H200.memory_gb_s * 1e6)
        assert copies_ms < 5.5 * floor_ms

"""A profile in words, and records from before there were profiles."""

import dataclasses
import json

import pytest
from builders.results import correct

from pike_hpc.records import (
    EvalResult,
    EvalStatus,
    KernelShare,
    Profile,
    ProfileSource,
    ResultKey,
    Tier,
    Timing,
    from_json,
    to_json,
)

TIMING = Timing(
    candidate_ms=0.52, reference_ms=1.0, speedup=1.92, ci95=(1.9, 2.0), windows=9, device_ms=0.41
)
PROFILE = Profile(
    source=ProfileSource.KERNELS,
    launches=37.0,
    copies=2.0,
    copies_ms=0.01,
    graph_replays=1.0,
    kernels=(
        KernelShare(name="sm90_xmma_gemm", share=0.62, launches=4.0),
        KernelShare(name="triton_poi_fused_relu_0", share=0.2, launches=33.0),
    ),
)
PASSED = EvalResult(
    key=ResultKey(task_digest="t", candidate_id="c", device_kind="nvidia-h200", image_digest="i"),
    status=EvalStatus.PASSED,
    tier=Tier.FP32,
    correctness=correct(),
    timing=TIMING,
    profile=PROFILE,
)


def test_a_profile_says_where_the_time_goes():
    head, *kernels = PASSED.profile_lines
    assert head == (
        "device 0.41 ms of 0.52 ms a call (idle for 21 %), 37 kernels, 2 copies or fills (0.01 ms),"
        " 1 CUDA graph replays"
    )
    assert kernels == ["62 % sm90_xmma_gemm, 4 a call", "20 % triton_poi_fused_relu_0, 33 a call"]


@pytest.mark.parametrize(("streams", "said"), [(0, False), (1, False), (3, True)])
def test_more_streams_than_one_are_worth_a_word(streams, said):
    profile = dataclasses.replace(PROFILE, streams=streams)
    (head, *_) = profile.lines(candidate_ms=0.52, device_ms=None, roofline_ms=None)
    assert ("37 kernels, on 3 streams, 2 copies" in head) is said


@pytest.mark.parametrize(
    ("source", "device_ms", "roofline_ms", "head"),
    [
        (ProfileSource.OPERATIONS, None, None, "0.52 ms a call, 60 operations"),
        (
            ProfileSource.EVENTS,
            0.5,
            0.08,
            "device 0.5 ms of 0.52 ms a call (idle for 4 %), "
            "roofline 0.08 ms (now 6.5 times that), no kernel could be traced",
        ),
    ],
)
def test_what_is_not_known_is_not_said(source, device_ms, roofline_ms, head):
    profile = Profile(source=source, launches=60.0)
    assert profile.lines(candidate_ms=0.52, device_ms=device_ms, roofline_ms=roofline_ms) == (head,)


def test_a_result_without_a_profile_has_no_lines():
    assert dataclasses.replace(PASSED, profile=None).profile_lines == ()
    failed = EvalResult(key=PASSED.key, status=EvalStatus.TIMEOUT)
    assert failed.profile_lines == ()


def test_a_profile_travels_and_records_from_before_it_are_read():
    assert from_json(EvalResult, to_json(PASSED)) == PASSED
    old = json.loads(to_json(PASSED))
    del old["profile"]
    assert from_json(EvalResult, json.dumps(old)) == dataclasses.replace(PASSED, profile=None)

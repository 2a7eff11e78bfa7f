"""Profiles on a real GPU: CUPTI inside the sandbox, replayed graphs, and events without CUPTI."""

import pytest

from pike_hpc.cli.lanes import open_lane
from pike_hpc.evaluate.device import image_digest
from pike_hpc.proposers.rules import probe_toolchain, rewrite
from pike_hpc.records import EvalRequest, EvalStatus, ProfileSource
from pike_hpc.tasks import effective_source, find_task

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]

LENET = "level3-pike/4"

NO_CUPTI = """
import torch.autograd.profiler as profiler
def refuse(*args, **more):
    raise RuntimeError("CUPTI is taken")
profiler.profile = refuse
"""


@pytest.fixture(scope="module")
def judge(device):
    with open_lane(device, "auto") as lane:

        def evaluate(*rules, more=""):
            task = find_task(LENET)
            made = rewrite(
                effective_source(task),
                rules,
                toolchain=probe_toolchain(),
                device_kind=device.kind,
            )
            request = EvalRequest(
                task=task,
                candidate_source=made.source + more,
                device_kind=device.kind,
                image_digest=image_digest(),
                timeout_s=180,
            )
            result = lane.evaluate(request)
            assert result.status is EvalStatus.PASSED, result
            return result

        yield evaluate


def test_kernels_of_an_eager_model_are_seen(judge):
    result = judge("identity")
    profile, timing = result.profile, result.timing
    assert profile.source is ProfileSource.KERNELS
    assert 0 < timing.device_ms <= timing.candidate_ms
    assert profile.launches >= 5  # two convolutions, three linear layers
    assert profile.graph_replays == 0
    assert profile.launches == int(profile.launches)  # each call the same: no kernel was lost
    assert 1 <= len(profile.kernels) <= 5
    assert sum(kernel.share for kernel in profile.kernels) <= 1.001
    assert "profiler" not in result.log_tail
    print("\n".join(result.profile_lines))


def test_a_replayed_graph_is_told_apart(judge):
    result = judge("compile_reduce_overhead")
    assert result.profile.graph_replays >= 1
    assert result.profile.source is ProfileSource.KERNELS
    print("\n".join(result.profile_lines))


def test_without_cupti_events_tell_the_time_on_the_device(judge):
    result = judge("identity", more=NO_CUPTI)
    assert result.profile.source is ProfileSource.EVENTS
    assert result.profile.kernels == ()
    print("\n".join(result.profile_lines))

"""The large tasks on a real GPU: built there, judged there, or refused by name."""

import gc

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.cli.lanes import open_lane  # noqa: E402
from pike_hpc.evaluate.device import image_digest  # noqa: E402
from pike_hpc.proposers.rules import probe_toolchain, rewrite  # noqa: E402
from pike_hpc.records import EvalRequest, EvalStatus  # noqa: E402
from pike_hpc.tasks import effective_source, find_task  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]

GIB = 2**30

MEMORY_HUNGRY = (
    "level5/2",
    "level5/3",
    "level5/8",
    "level5/9",
    "level5/12",
    "level5/13",
    "level5/14",
    "level3-pike/31",
)
"""Tasks that took more than 18 GiB of an H200 when they were admitted, or hold many of weights."""


@pytest.fixture(scope="module")
def lane(device):
    with open_lane(device, "auto") as lane:
        yield lane


def identity(lane, device, key):
    """The verdict on the reference itself as a candidate."""
    task = find_task(key)
    made = rewrite(
        effective_source(task), ("identity",), toolchain=probe_toolchain(), device_kind=device.kind
    )
    request = EvalRequest(
        task=task,
        candidate_source=made.source,
        device_kind=device.kind,
        image_digest=image_digest(),
        timeout_s=300,
    )
    return lane.evaluate(request)


@pytest.mark.parametrize(
    "key",
    [
        "level5/1",  # an integer and complex numbers among the inputs
        "level5/2",  # None among them; 12.8 GB of weights
        "level5/3",  # bfloat16, caches, routing
        "level5/12",  # caches that follow the weights
        "level5/14",  # 17 GB of them
        "level3-pike/33",  # state between calls
    ],
)
def test_the_reference_passes_against_itself(lane, device, key):
    result = identity(lane, device, key)
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
    assert "caches_weights" not in result.tags


@pytest.fixture(scope="module", params=[38, 78])
def small(request, device):
    """So many GiB of the GPU are free, the rest is ballast; and a lane there.

    Until the module ends: its tests are the last.
    """
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info()
    room = request.param * GIB
    if free < room:
        pytest.skip(f"{free / GIB:.0f} of {total / GIB:.0f} GiB are free, {request.param} needed")
    ballast = torch.empty(free - room, dtype=torch.uint8, device="cuda")
    with open_lane(device, "auto") as lane:
        yield request.param, lane
    del ballast
    gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.parametrize("key", MEMORY_HUNGRY)
def test_a_small_gpu_judges_a_large_task_or_says_what_is_missing(small, device, key):
    free_gib, lane = small
    result = identity(lane, device, key)
    said = f"{free_gib} GiB, {key}: {result.status}: {result.message}"
    print(said)
    if result.status is EvalStatus.PASSED:
        assert (free_gib, key) != (38, "level5/14"), "its admission takes 52 GiB"
    else:
        assert "GiB" in result.message or "would pass" in result.message, said
        assert free_gib == 38 or key == "level5/9", said

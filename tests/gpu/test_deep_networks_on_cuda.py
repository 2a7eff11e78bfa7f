"""Deep networks at the precision of torch's own flags, in float16, and in bfloat16."""

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.cli.lanes import open_lane  # noqa: E402
from pike_hpc.evaluate.device import image_digest  # noqa: E402
from pike_hpc.records import EvalRequest, EvalStatus, Tier  # noqa: E402
from pike_hpc.tasks import effective_source, find_task  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]

DEEP = ("10", "15", "19", "20", "22", "23")
"""Of level3-pike: 23 to 104 BatchNorm layers. 24 squeezes what it knows into one pixel five times:
there nothing but float32 tells right from wrong."""

AS_TORCH_SHIPS = "class ModelNew(Model):\n    pass\n"
AUTOCAST = """
class ModelNew(Model):
    def forward(self, x):
        with torch.autocast("cuda", torch.DTYPE):
            return super().forward(x).float()
"""

WHILE = """
class ModelNew(Model):
    calls = 0

    def forward(self, x):
        self.calls += 1
        torch.backends.cudnn.allow_tf32 = self.calls > CALLS
        return super().forward(x)
"""


@pytest.fixture(scope="module")
def lane(device):
    with open_lane(device, "auto") as lane:
        yield lane


def judged(lane, device, number, candidate):
    task = find_task(f"level3-pike/{number}")
    request = EvalRequest(
        task=task,
        candidate_source=f"{effective_source(task)}\n\n{candidate}",
        device_kind=device.kind,
        image_digest=image_digest(),
        timeout_s=300,
    )
    found = lane.evaluate(request)
    error = found.correctness and found.correctness.relative_error
    print(f"level3-pike/{number}: {found.status}, tier {found.tier}, {error}: {found.message}")
    return found


@pytest.mark.parametrize("number", DEEP)
def test_no_precision_that_people_use_is_called_wrong(lane, device, number):
    shipped = judged(lane, device, number, AS_TORCH_SHIPS)
    assert shipped.status is EvalStatus.PASSED, shipped.message
    assert shipped.tier is not Tier.FP32, "torch's convolutions are TF32 unless told otherwise"
    half = judged(lane, device, number, AUTOCAST.replace("DTYPE", "float16"))
    assert half.status is EvalStatus.PASSED, half.message
    # Three digits fewer: enough for some of them, and for none of them wrong.
    coarse = judged(lane, device, number, AUTOCAST.replace("DTYPE", "bfloat16"))
    assert coarse.status in (EvalStatus.PASSED, EvalStatus.JUDGE_ERROR), coarse.message


@pytest.mark.parametrize("number", ["10", "20"])
def test_who_is_exact_in_its_exam_alone_does_not_earn_its_tier(lane, device, number):
    """Its timed answers are compared with a reference that is as coarse."""
    exact = judged(lane, device, number, WHILE.replace("CALLS", "1 << 60"))
    assert (exact.status, exact.tier) == (EvalStatus.PASSED, Tier.FP32), exact.message
    coarse = judged(lane, device, number, WHILE.replace("CALLS", "4"))
    assert coarse.status is EvalStatus.PASSED, coarse.message
    assert coarse.tier is not Tier.FP32

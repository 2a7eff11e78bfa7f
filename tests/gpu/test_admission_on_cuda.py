"""Admission on a GPU: half's own noise is measured there, however slow a reference is."""

import pytest
from builders.qkv_task import SOURCE, WORKS

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.judge_admission import admit  # noqa: E402
from pike_hpc.evaluate.judge_faint import faint  # noqa: E402
from pike_hpc.evaluate.judge_secrets import Secrets  # noqa: E402
from pike_hpc.evaluate.judge_truth import Truth, WeightsBy  # noqa: E402
from pike_hpc.records import Task  # noqa: E402
from pike_hpc.tasks.load import build  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

SLOW = SOURCE.format(body=WORKS + "return q * k + v")
LOSES = SOURCE.format(
    body="y = self.even(q * k)\n"
    "        return torch.nn.functional.binary_cross_entropy(y, (v > 0).float(), reduction='none')"
).replace("super().__init__()", "super().__init__()\n        self.even = nn.Sigmoid()")
"""Without its sigmoid an assertion ends the process's use of the GPU."""


def admitted(source):
    """The yardstick of a tiny task on the GPU."""
    task = Task(suite="tests", id="1", name="tiny", source=source)
    truth = Truth(build(task), WeightsBy.STATE, torch.device("cuda"), Secrets(b"key"))
    try:
        return admit(truth, task.digest)
    finally:
        truth.close()


def test_what_half_ends_at_hangs_on_no_clock(device):
    found = admitted(SLOW)
    assert found.admission.admitted, found.admission.reason
    assert found.wide is None
    assert found.half_noise > 2e-3  # rounding alone: about 1.1e-3


def test_no_layer_is_left_out_before_what_asserts(device):
    found = admitted(LOSES)
    assert found.admission.admitted, found.admission.reason
    assert "layer_skipped" in found.admission.not_applicable
    assert float(torch.ones(1, device="cuda")) == 1.0


@pytest.mark.parametrize("kind", [torch.nn.RNN, torch.nn.LSTM])
def test_what_a_recurrence_forgets_is_found_there(device, kind):
    torch.manual_seed(0)
    layer = kind(8, 8, batch_first=True).cuda().eval()
    model = torch.nn.Sequential(layer)
    given = torch.randn(2, 400, 8)

    class Last(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = model

        def forward(self, x):
            return self.layers(x)[0][:, -1]

    (mask,) = faint(Last(), torch.device("cuda"), lambda change: [change(given)], 1)
    steps = mask.all(dim=2).all(dim=0)
    assert mask.device.type == "cpu"
    assert steps[:200].all()
    assert not steps[-1]
    assert next(layer.parameters()).dtype == torch.float32

"""What the convolution networks of level3-pike run: which operations, how often, at which size.

Counted on meta tensors at full size, from what forward dispatches, and compared with counts worked
out from the published architectures: an activation, an addition or a stride too many is seen.
"""

from collections import Counter

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from pike_hpc.tasks import find_task  # noqa: E402
from pike_hpc.tasks.load import build  # noqa: E402

pytestmark = pytest.mark.torch

COUNTED = {
    "convolution": "conv",
    "add": "add",
    "add_": "add",
    "relu": "relu",
    "relu_": "relu",
    "hardtanh": "relu6",
    "hardtanh_": "relu6",
    "sigmoid": "sigmoid",
    "cat": "cat",
    "max_pool2d_with_indices": "maxpool",
}
# id: operations; height of a convolution's output to how many convolutions have it
WORK = {
    "6": ({"conv": 6, "cat": 1, "maxpool": 1}, {224: 6}),
    "8": ({"conv": 3, "relu": 2, "add": 1}, {224: 3}),
    "9": (
        {"conv": 20, "relu": 17, "add": 8, "maxpool": 1},
        {112: 1, 56: 4, 28: 5, 14: 5, 7: 5},
    ),
    # A stage's first 1x1 convolution still runs at the resolution of the stage before.
    "10": (
        {"conv": 104, "relu": 100, "add": 33, "maxpool": 1},
        {112: 1, 56: 11, 28: 13, 14: 70, 7: 9},
    ),
    "14": ({"conv": 6, "relu": 6, "cat": 6}, {224: 6}),
    "15": (
        {"conv": 62, "relu": 63, "cat": 58, "maxpool": 1},
        {112: 1, 56: 7, 28: 13, 14: 25, 7: 16},
    ),
    "16": (
        {"conv": 102, "relu": 103, "cat": 98, "maxpool": 1},
        {112: 1, 56: 7, 28: 13, 14: 49, 7: 32},
    ),
    "19": ({"conv": 27, "relu": 27}, {112: 3, 56: 4, 28: 4, 14: 12, 7: 4}),
    "20": ({"conv": 52, "relu6": 35}, {112: 4, 56: 6, 28: 9, 14: 21, 7: 12}),
    "21": ({"conv": 3, "relu6": 2}, {224: 1, 112: 2}),
    "22": (
        {"conv": 40, "relu": 2, "relu6": 25, "add": 6},
        {112: 4, 56: 6, 28: 6, 14: 12, 7: 12},
    ),
    "23": ({"conv": 23, "relu": 2, "relu6": 14}, {120: 5, 60: 3, 30: 3, 15: 6, 8: 6}),
    # The excitation replaces the features: one pixel from the first block on.
    "24": ({"conv": 27, "relu": 17, "sigmoid": 5}, {112: 3, 1: 24}),
    "25": ({"conv": 4, "relu": 2, "add": 1}, {224: 4}),
    # No unit has a stride.
    "26": ({"conv": 44, "relu": 28, "add": 13, "maxpool": 1}, {112: 1, 56: 43}),
    "27": ({"conv": 6, "relu": 6, "maxpool": 3}, {224: 2, 112: 2, 56: 2}),
}


class Recorder(TorchDispatchMode):
    """Counts operations, and the heights of what convolutions give."""

    def __init__(self):
        super().__init__()
        self.operations = Counter()
        self.heights = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in COUNTED:
            self.operations[COUNTED[name]] += 1
        if name == "convolution":
            self.heights[output.shape[2]] += 1
        return output


@pytest.mark.parametrize("task_id", WORK)
def test_the_network_runs_the_published_operations_at_the_published_sizes(task_id):
    loaded = build(find_task(f"level3-pike/{task_id}"))
    with torch.device("meta"):
        model, inputs = loaded.make_model().eval(), loaded.inputs()
        with torch.no_grad(), Recorder() as recorder:
            model(*inputs)
    operations, heights = WORK[task_id]
    assert recorder.operations == operations
    assert recorder.heights == heights

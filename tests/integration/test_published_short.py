"""What the judge says of a folder of solutions is what a plain process shows of them."""

import pytest
from builders.benchmarks import benchmark

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

TASK = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        return torch.relu(self.norm(self.linear(x)))


def get_inputs():
    return [torch.randn(64, 128)]


def get_init_inputs():
    return [128]
"""
FOLDED = """
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        linear, norm = nn.Linear(width, width), nn.BatchNorm1d(width)
        with torch.no_grad():
            gain = norm.weight / (norm.running_var + norm.eps).sqrt()
            self.register_buffer("weight", linear.weight * gain[:, None])
            self.register_buffer("bias", SHIFT)

    def forward(self, x):
        return torch.relu(nn.functional.linear(x, self.weight, self.bias))
"""
SHIFTS = {
    "1_right.py": "(linear.bias - norm.running_mean) * gain + norm.bias",
    "1_forgot.py": "linear.bias * gain",
}
"""Of the second nothing shows with a norm that nobody trained: its mean and shift are zero."""


def test_a_solution_that_only_a_trained_norm_tells_apart(tmp_path):
    task, folder = tmp_path / "1_Normed.py", tmp_path / "solutions"
    task.write_text(TASK, "utf-8")
    folder.mkdir()
    for name, shift in SHIFTS.items():
        (folder / name).write_text(FOLDED.replace("SHIFT", shift), "utf-8")
    code, found, said = benchmark("published.py", str(task), str(folder), "--device", "cpu")
    assert code == 0, said
    rows = {row["file"]: row for row in found["rows"]}
    right, forgot = rows["1_right.py"], rows["1_forgot.py"]
    assert (right["status"], forgot["status"]) == ("PASSED", "WRONG_RESULT"), found
    assert right["shipped"]["close"] == forgot["shipped"]["close"] == [True] * 3
    assert right["trained"]["close"] == [True] * 3
    assert forgot["trained"]["close"] == [False] * 3
    assert right["trained"]["error"] < right["trained"]["half"]
    assert forgot["trained"]["error"] > 0.1
    assert found["refused_though_near"] == found["passed_though_far"] == []

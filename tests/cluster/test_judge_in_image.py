"""The judge with engine apptainer, as an ordinary user, on the image of containers/eval-cpu.def."""

import json
import re

import pytest
from builders.devcluster import Rig, own_folder, public_python

from pike_hpc.bootstrap.install import pinned

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(1500)]

TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        return torch.relu(self.layer(x))

def get_inputs():
    return [torch.randn(32, 64)]

def get_init_inputs():
    return []
"""
HONEST = TASK.partition("def get_inputs")[0].replace("class Model", "class ModelNew")
COMPILED = """
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.fast = torch.compile(lambda x: torch.relu(self.layer(x)))

    def forward(self, x):
        return self.fast(x)
"""
CANDIDATES = {
    "honest": HONEST,
    "compiled": HONEST.partition("    def __init__")[0] + COMPILED,
    "wrong": HONEST.replace("torch.relu(self.layer(x))", "self.layer(x)"),
    "calls out": "import socket\nsocket.create_connection(('127.0.0.1', 9))\n" + HONEST,
}


def test_the_image_says_what_it_holds(judge, image):
    said = judge.run("apptainer", "inspect", "--labels", image)
    labels = dict(re.findall(r"^pike\.(\S+): (\S+)", said, re.M))
    assert labels["image"] == "eval-cpu"
    assert labels["torch"] == f"{pinned('torch')}+cpu"
    assert labels["numpy"] == pinned("numpy")
    assert set(labels) == {"image", "debian", "python", "torch", "numpy", "ninja", "g++"}


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("honest", "PASSED", 0),
        ("compiled", "PASSED", 0),
        ("wrong", "WRONG_RESULT", 3),
        ("calls out", "BUILD_ERROR", 3),
    ],
)
def test_a_candidate_in_the_image_is_judged(judge, image, name, status, code):
    task = judge.write("task.py", TASK)
    file = judge.write("candidate.py", CANDIDATES[name])
    options = ("--device=cpu", "--engine=apptainer", f"--image={image}", "--min-isolation=L3")
    command = ("-m", "pike_hpc", "evaluate", task, file, *options)
    done = judge.tried(judge.python, *command, "--json", timeout_s=400)
    assert done.returncode == code, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["status"] == status, verdict["log_tail"]
    assert verdict["isolation"]["level"] == "L3"
    assert verdict["isolation"]["engine"] == "apptainer"
    open_ones = {attack for attack, held in verdict["isolation"]["probes"].items() if not held}
    assert open_ones == {"processes", "scratch", "memory_together", "memory_in_files"}


MEASURE = """
import sys
from pathlib import Path
from pike_hpc.cli.lanes import measure_isolation
print(measure_isolation(sys.argv[1], Path("/tmp")).level)
"""


@pytest.mark.parametrize(("engine", "level"), [("bubblewrap", "L3"), ("unshare", "L3")])
def test_an_ordinary_users_lane_is_measured_as_its_runners_are_kept(demand, engine, level):
    """Without root the probe's own secrets belong to whoever attacks: none may be shown."""
    demand("apptainer")
    with own_folder() as folder:
        rig = Rig(folder, public_python())
        assert rig.run(rig.python, "-c", MEASURE, engine) == level

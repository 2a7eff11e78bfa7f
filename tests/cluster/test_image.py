"""The image of containers/eval-cpu.def, built and used by an ordinary user: the judge with Apptainer.

Building takes minutes, so an image that lies in the user's folder is used as it is; it goes with the
rig.
"""

import json
import re
import subprocess
import sys

import pytest
from rig_user import PACKAGES, REPO, Rig, own_folder, public_python

from pike_hpc.bootstrap.install import pinned

BUILD = str(REPO / "containers/build.py")
MEASURE = """
import json, sys
from pathlib import Path
from pike_hpc.cli.lanes import measure_isolation
found = measure_isolation("apptainer", Path("/tmp"), sys.argv[1])
print(json.dumps([found.level, dict(found.probes)]))
"""
JUDGE = """
import json, sys
from pathlib import Path
from pike_hpc.cli.lanes import open_lane
from pike_hpc.evaluate.device import detect
from pike_hpc.records import EvalRequest, Task, encode
image, task, *candidates = sys.argv[1:]
with open_lane(detect("cpu"), "apptainer", Path("/tmp"), image) as lane:
    for candidate in candidates:
        request = EvalRequest(
            task=Task(suite="cluster", id="1", name="tiny", source=task),
            candidate_source=candidate,
            device_kind="cpu",
            image_digest="eval-cpu",
            timeout_s=120.0,
            min_isolation="L3",
        )
        print(json.dumps(encode(lane.evaluate(request))), flush=True)
"""
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
WRONG = HONEST.replace("torch.relu(self.layer(x))", "self.layer(x)")


@pytest.fixture(scope="module")
def rig(demand):
    """The user with a Python that has torch of its own, as the judge outside the image needs."""
    demand("apptainer")
    with own_folder() as folder:
        rig = Rig(folder, public_python())
        rig.run(rig.python, "-m", "venv", "--without-pip", "venv")
        (packages,) = (folder / "venv/lib").glob("python*/site-packages")
        rig.write(packages / "outside.pth", f"{PACKAGES}\n{REPO}\n")
        rig.python = str(folder / "venv/bin/python")
        yield rig


@pytest.fixture(scope="module")
def image(rig):
    """The path of the image."""
    images = rig.home / "pike-hpc/images"
    if not (images / "eval-cpu.sif").exists():
        wheels = rig.folder / "wheels"
        # As root: pip's settings are this user's.
        download = [sys.executable, BUILD, "eval-cpu", "--only-wheels", "--wheels", str(wheels)]
        subprocess.run(download, check=True)
        options = ("--wheels", str(wheels), "--out", str(images))
        rig.run(rig.python, BUILD, "eval-cpu", *options, timeout_s=1200)
    return str(images / "eval-cpu.sif")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_image_says_what_it_holds(rig, image):
    labels = dict(re.findall(r"^pike\.(\S+): (\S+)", rig.run("apptainer", "inspect", image), re.M))
    assert labels["image"] == "eval-cpu"
    assert labels["torch"] == f"{pinned('torch')}+cpu"
    assert labels["numpy"] == pinned("numpy")
    assert set(labels) == {"image", "debian", "python", "torch", "numpy", "ninja", "g++"}

"""CUDA under each engine: what it asks of the kernel is none of what the filter refuses."""

import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from pike_hpc.sandbox import (
    Engine,
    SandboxSpec,
    command,
    environment,
    look,
    measure,
    python_prefixes,
    python_trial,
)
from pike_hpc.sandbox.choose import refusal

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]

FACTS = look()
ENGINES = (Engine.UNSHARE, Engine.BUBBLEWRAP, Engine.NONE)

EVERYTHING = """
import torch
from torch.profiler import ProfilerActivity, profile
x = torch.randn(512, 512, device="cuda")
pinned = torch.randn(1 << 20).pin_memory().to("cuda", non_blocking=True)
graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
with torch.cuda.stream(stream):
    for _ in range(3):
        torch.relu(x @ x)
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    y = torch.relu(x @ x)
graph.replay()
torch.nn.functional.conv2d(x.view(1, 2, 256, 512), torch.ones(4, 2, 3, 3, device="cuda"))
with profile(activities=[ProfilerActivity.CUDA]) as traced:
    (x @ x).sum().item()
kernels = [e for e in traced.events() if e.device_type == torch.autograd.DeviceType.CUDA]
twice = torch.compile(lambda a: torch.relu(2 * a + 1).sum())
assert torch.allclose(twice(x), torch.relu(2 * x + 1).sum(), rtol=1e-3)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print("works", len(kernels) > 0, status["Seccomp"].strip())
"""


def given(folder):
    return SandboxSpec(
        argv=(sys.executable, "-I", "-B", "-c", EVERYTHING),
        read_only=python_prefixes(),
        env=environment(folder, threads=4),
        scratch_mb=2048,
        processes=512,
        gpu=True,
    )


def ended(engine, spec):
    """The program at its end, whatever its status."""
    return subprocess.run(
        command(engine, spec, FACTS),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
        start_new_session=True,
        check=False,
    )


@pytest.fixture(params=ENGINES)
def engine(request, device):
    reason = refusal(request.param, FACTS, python_trial(given(Path("/tmp")), Path(sys.executable)))
    if reason:
        pytest.skip(f"{request.param}: {reason}")
    return request.param


@pytest.fixture
def folder():
    """A folder on this node that every user may enter, as a site's paths.tmp is."""
    with tempfile.TemporaryDirectory(prefix="pike-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_torch_and_its_compilers_work_on_cuda_under_the_filter(engine, folder):
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    spec = given(folder if engine is Engine.NONE else Path("/tmp"))
    if engine is Engine.NONE:
        folder.chmod(0o1777)
    done = ended(engine, spec)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-3:] == ["works", "True", "2"]


COUNT = "import torch; print(torch.cuda.device_count(), torch.ones(1, device='cuda').item())"


def test_siblings_of_a_gpu_are_out_of_reach(engine, device, folder):
    """Whatever CUDA_VISIBLE_DEVICES says inside, and only where engines make the nodes."""
    if len(FACTS.gpu_nodes) < 2 or engine is Engine.NONE:
        pytest.skip(f"{engine}, {len(FACTS.gpu_nodes)} GPUs: there is nothing to leave out")
    spec = replace(given(folder), gpu_uuid=device.gpus[0])
    spec = replace(spec, argv=(*spec.argv[:-1], COUNT))
    done = ended(engine, spec)
    assert done.stdout.split() == ["1", "1.0"], done.stderr


def test_gpus_inside_cost_no_level(engine, folder):
    measured = measure(engine, FACTS, given(folder), python=sys.executable, folder=folder)
    expected = "L1" if FACTS.uid else "L2"
    assert measured.level == (expected if engine is Engine.NONE else "L3"), measured.probes

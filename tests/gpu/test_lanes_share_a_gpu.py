"""Two lanes on one GPU: each times as if it were alone, whatever the other one does."""

import os
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from pike_hpc import sandbox
from pike_hpc.evaluate.crew import Crew
from pike_hpc.evaluate.device import image_digest
from pike_hpc.evaluate.gate import Gate
from pike_hpc.evaluate.judge_room import PLENTY_BYTES
from pike_hpc.evaluate.lane import Lane
from pike_hpc.proposers.rules import probe_toolchain, rewrite
from pike_hpc.records import EvalRequest, EvalResult, EvalStatus, Task
from pike_hpc.tasks import effective_source, find_task

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]

ENDLESS = """
class ModelNew(Honest):
    def forward(self, x):
        torch.cuda._sleep(10**13)
        return super().forward(x)
"""


@pytest.fixture(scope="module")
def lanes(device):
    gate: Gate[Crew] = Gate()
    engine = sandbox.choose("auto", sandbox.look())
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o711)
        options = {"scratch": Path(folder), "gpu": device.gpus[0], "gate": gate, "spares": True}
        with (
            Lane("cuda", engine, **options) as first,
            Lane("cuda", engine, **options) as second,
        ):
            yield first, second


def request(device, task_id: str, rule: str, more: str = "", timeout_s: float = 120) -> EvalRequest:
    task = find_task(f"level3-pike/{task_id}")
    made = rewrite(
        effective_source(task), (rule,), toolchain=probe_toolchain(), device_kind=device.kind
    )
    source = made.source
    if more:
        source = source.replace("class ModelNew", "class Honest") + more
    return EvalRequest(
        task=task,
        candidate_source=source,
        device_kind=device.kind,
        image_digest=image_digest(),
        timeout_s=timeout_s,
    )


def beside(lane: Lane, others: list[EvalRequest], judge) -> tuple[EvalResult, list[EvalResult]]:
    """What `judge` gives while `lane` judges others, again and again."""
    over, results = threading.Event(), []

    def work() -> None:
        while not over.is_set():
            results.extend(lane.evaluate(one) for one in others)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        found = judge()
    finally:
        over.set()
        thread.join()
    return found, results


def test_a_speedup_is_the_same_with_another_lane_at_work(device, lanes):
    first, second = lanes
    asked = request(device, "4", "compile_reduce_overhead")
    busy = [request(device, "1", "identity"), request(device, "33", "compile_default")]
    alone = first.evaluate(asked)
    assert alone.status is EvalStatus.PASSED, alone
    shared, results = beside(second, busy, lambda: first.evaluate(asked))
    assert shared.status is EvalStatus.PASSED, shared
    (low, high), (least, most) = shared.timing.ci95, alone.timing.ci95
    assert low < most, "slower than alone"
    assert least < high, "faster than alone"
    for result in results:
        assert result.status is EvalStatus.PASSED, result
        assert 0 < result.gpu_exclusive_s < 20


def test_kernels_that_do_not_end_cost_only_their_own_candidate(device, lanes):
    first, second = lanes
    asked = request(device, "4", "identity")
    endless = request(device, "1", "identity", ENDLESS, timeout_s=30)
    shared, results = beside(second, [endless], lambda: first.evaluate(asked))
    assert shared.status is EvalStatus.PASSED, shared
    low, high = shared.timing.ci95
    assert low / 1.1 <= 1 <= high * 1.1
    assert {result.status for result in results} == {EvalStatus.TIMEOUT}, results


WIDE = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = torch.nn.Parameter(torch.rand(1024))

    def forward(self, x):  # (1024, 1024); 4 GiB on the way
        return (x * self.scales[:, None, None]).sum(0)


def get_inputs():
    return [torch.rand(1024, 1024)]


def get_init_inputs():
    return []
"""


def lanes_hold_mb(device) -> list[int]:
    """What each process holds of the GPU that is not this one."""
    asked = ["--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    done = subprocess.run(
        ["nvidia-smi", f"--id={device.gpus[0]}", *asked], capture_output=True, text=True, check=True
    )
    held = []
    for pid, mb in (line.split(", ") for line in done.stdout.splitlines()):
        if not mb.isdecimal() or not Path("/proc", pid).exists():
            pytest.skip(f"the driver doesn't say who holds what: {done.stdout.strip()!r}")
        if int(pid) != os.getpid():
            held.append(int(mb))
    return held


@pytest.fixture
def less_than_plenty():
    """24 GiB of the GPU are free, the rest is ballast."""
    torch = pytest.importorskip("torch")
    free = torch.cuda.mem_get_info()[0]
    room = 24 << 30
    assert room < PLENTY_BYTES
    ballast = torch.empty(max(0, free - room), dtype=torch.uint8, device="cuda")
    yield
    del ballast
    torch.cuda.empty_cache()


@pytest.mark.usefixtures("less_than_plenty")
def test_where_memory_may_get_short_nobody_holds_between_orders_what_calls_took(device, lanes):
    first, _ = lanes
    result = first.evaluate(
        EvalRequest(
            task=Task(suite="tests", id="1", name="wide", source=WIDE),
            candidate_source=WIDE,
            device_kind=device.kind,
            image_digest=image_digest(),
            timeout_s=120,
        )
    )
    assert result.status is EvalStatus.PASSED, result
    held = lanes_hold_mb(device)
    assert len(held) >= 2, "a judge and its reference"
    assert max(held) < 2048, held

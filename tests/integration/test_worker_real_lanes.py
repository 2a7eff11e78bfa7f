"""One worker with two real lanes on this CPU: each keeps to its cores, both commit."""

import os
import tempfile
from pathlib import Path

import pytest
from builders.small_layer import HONEST, SOURCE

pytest.importorskip("torch")

from pike_hpc import sandbox
from pike_hpc.cli.lanes import LaneJudge
from pike_hpc.evaluate.device import Device
from pike_hpc.evaluate.lane import Lane
from pike_hpc.machine import divide_cpus, physical_cores
from pike_hpc.mailbox import FileMailbox, QueueCounts
from pike_hpc.records import EvalRequest, EvalStatus, Task
from pike_hpc.worker import Stop, WorkerOptions, run_worker

pytestmark = [pytest.mark.torch, pytest.mark.slow]

WHERE = """
import os


class ModelNew:
    raise RuntimeError(f"cpus {sorted(os.sched_getaffinity(0))} #NUMBER")
"""


def request(source: str) -> EvalRequest:
    task = Task(suite="lanes", id="1", name="tiny", source=SOURCE)
    return EvalRequest(task=task, candidate_source=source, device_kind="cpu", image_digest="i")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two lanes need two CPUs")
def test_two_lanes_share_one_mailbox_and_no_core(tmp_path):
    cpus = os.sched_getaffinity(0)
    shares = divide_cpus(cpus, 2, physical_cores(cpus))
    mailbox = FileMailbox(tmp_path)
    honest = request(HONEST)
    asking = [request(WHERE.replace("NUMBER", str(n))) for n in range(5)]
    for one in (*asking, honest):  # the first two go to both lanes
        mailbox.put(one)
    device = Device(kind="cpu", torch_device="cpu", why="")
    engine = sandbox.choose("auto", sandbox.look())
    with tempfile.TemporaryDirectory() as scratch:
        judges = [
            LaneJudge(Lane("cpu", engine, scratch=Path(scratch), threads=len(s)), device, s)
            for s in shares
        ]
        options = WorkerOptions(worker_id="w", max_idle_s=0.5, expected_s=0.0)
        assert run_worker(mailbox, judges, options, stop=Stop()) == 0
        assert not list(Path(scratch).iterdir())
    assert mailbox.counts() == QueueCounts(new=0, claimed=0, done=6, dead=0)
    results = mailbox.results([one.request_id for one in (honest, *asking)])
    passed = results[honest.request_id]
    assert passed.status is EvalStatus.PASSED, passed.message
    said = {results[one.request_id].log_tail for one in asking}
    seen = {str(sorted(s)) for s in shares if any(f"cpus {sorted(s)}" in text for text in said)}
    assert seen == {str(sorted(s)) for s in shares}, said
    assert os.sched_getaffinity(0) == cpus

"""One worker on all GPUs of this node: each lane sees its own, and no second process judges."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pike_hpc.cli.lanes import open_judges
from pike_hpc.evaluate.device import image_digest
from pike_hpc.mailbox import MemoryMailbox
from pike_hpc.proposers.rules import probe_toolchain, rewrite
from pike_hpc.records import EvalRequest, EvalStatus
from pike_hpc.tasks import effective_source, find_task
from pike_hpc.worker import Stop, WorkerOptions, run_worker

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.slow]

WHERE = """
import os


class ModelNew:
    raise RuntimeError(f"sees {os.environ['CUDA_VISIBLE_DEVICES']} #NUMBER")
"""
TAKE = """
import sys
from pathlib import Path
from pike_hpc.evaluate.gpu_lock import take_free
take_free(Path(sys.argv[1]), sys.argv[2:], wanted=1)
"""


def requests(device):
    """For each GPU a program that says where it is, then the references themselves."""
    sources = [("4", WHERE.replace("NUMBER", str(n))) for n in range(2 * len(device.gpus))]
    for task_id in ("4", "1", "8", "33")[: len(device.gpus)]:
        task = find_task(f"level3-pike/{task_id}")
        made = rewrite(
            effective_source(task),
            ("identity",),
            toolchain=probe_toolchain(),
            device_kind=device.kind,
        )
        sources.append((task_id, made.source))
    return [
        EvalRequest(
            task=find_task(f"level3-pike/{task_id}"),
            candidate_source=source,
            device_kind=device.kind,
            image_digest=image_digest(),
        )
        for task_id, source in sources
    ]


def test_every_gpu_is_driven_and_locked(device):
    mailbox, asked = MemoryMailbox(), requests(device)
    for one in asked:
        mailbox.put(one)
    folder = Path("/tmp")
    options = WorkerOptions(worker_id="w", max_idle_s=0.5, expected_s=0.0)
    with open_judges(device, "auto", folder) as judges:
        assert len(judges) % len(device.gpus) == 0, "as many lanes on each"
        second = subprocess.run(
            [sys.executable, "-c", TAKE, str(folder), *device.gpus],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert second.returncode != 0
        assert f"process {os.getpid()}" in second.stderr, second.stderr
        assert run_worker(mailbox, judges, options, stop=Stop()) == 0
    results = mailbox.results([one.request_id for one in asked])
    assert len(results) == len(asked)
    where, honest = asked[: 2 * len(device.gpus)], asked[2 * len(device.gpus) :]
    logs = [results[one.request_id].log_tail for one in where]
    seen = {found for log in logs for found in re.findall(r"sees (GPU-[0-9a-f-]+)", log)}
    assert seen == set(device.gpus), logs
    for one in honest:
        result = results[one.request_id]
        assert result.status is EvalStatus.PASSED, (one.task.key, result.message)

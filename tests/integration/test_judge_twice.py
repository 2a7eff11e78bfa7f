"""Who is judged again with all connections to a GPU; real runners, and a CPU taken for one.

A CPU's profile says nothing of streams, so that a program that passes may have several.
"""

import contextlib
import functools
import tempfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from builders.threaded_judge import OPENING, ThreadedCell  # noqa: E402 - torch
from builders.tiny_task import asked, forward  # noqa: E402 - torch

from pike_hpc import sandbox  # noqa: E402
from pike_hpc.evaluate.built import NOTHING  # noqa: E402
from pike_hpc.evaluate.crew import Crew  # noqa: E402
from pike_hpc.evaluate.gate import Gate  # noqa: E402
from pike_hpc.evaluate.judge import Judge  # noqa: E402 - torch
from pike_hpc.evaluate.judge_host import Host  # noqa: E402
from pike_hpc.evaluate.judge_streams import Streams  # noqa: E402
from pike_hpc.evaluate.wire import Role  # noqa: E402
from pike_hpc.records import EvalStatus, encode  # noqa: E402

pytestmark = pytest.mark.torch

RIGHT, WRONG = "return self.right(x)", "return 2 * self.right(x)"
SHOWN = "\ndef side(): return torch.cuda.Stream()\n"


class ToldHost(Host):
    """Tells which runners were started and ended, in turn."""

    def __init__(self, told, channel, folder):
        super().__init__(channel, folder)
        self._told = told

    def spawn(self, role, socket):
        self._told.append(role)
        return super().spawn(role, socket)

    def kill(self, runner, grace_s):
        self._told.append(runner)
        return super().kill(runner, grace_s)


@pytest.fixture
def judged():
    """judged(source, device): the result, and what became of runners."""
    with contextlib.ExitStack() as stack:

        def judge(source, device):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
            folder.chmod(0o711)
            told = []
            cell = ThreadedCell(
                engine=sandbox.choose("auto", sandbox.look()),
                folder=folder / "lane",
                device="cpu",
                threads=1,
                memory_mb=2048,
                scratch_mb=1024,
                processes=64,
                extra={},
                make=functools.partial(Judge, streams=Streams(device)),
                host=functools.partial(ToldHost, told),
            )
            crew = Crew(cell, Gate(), lambda: OPENING)
            stack.callback(crew.close)
            message = {"request": encode(asked(source)), "built": encode(NOTHING), "keep": False}
            result = crew.order({"order": "evaluate", **message})
            told.remove(Role.REFERENCE)
            return result["status"], told

        yield judge


@pytest.mark.parametrize(
    ("source", "device", "status", "told"),
    [
        (forward(RIGHT), "cuda", EvalStatus.PASSED, [Role.CANDIDATE, 1, Role.SPREAD, 3]),
        (forward(RIGHT, SHOWN), "cuda", EvalStatus.PASSED, [Role.SPREAD, 1]),
        (forward(WRONG), "cuda", EvalStatus.WRONG_RESULT, [Role.CANDIDATE, 1]),
        (forward(RIGHT), "cpu", EvalStatus.PASSED, [Role.CANDIDATE, 1]),
    ],
    ids=["nobody saw its streams", "its text has streams", "wrong", "no GPU"],
)
def test_who_may_have_several_streams_is_judged_with_all_connections(
    judged, source, device, status, told
):
    assert judged(source, device) == (status, told)

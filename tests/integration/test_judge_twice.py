"""Who is judged again with all connections to a GPU; real runners, and a CPU taken for one.

A CPU's profile says nothing of streams, so that a program that passes may have several.
"""

import contextlib
import functools
import tempfile
from dataclasses import dataclass, replace
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
from pike_hpc.evaluate.wire import RunnerRole  # noqa: E402
from pike_hpc.records import EvalStatus, encode  # noqa: E402

pytestmark = pytest.mark.torch

RIGHT, WRONG = "return self.right(x)", "return 2 * self.right(x)"
WRONG_WIDE = "return self.right(x) * (2 if os.environ['ROLE'] == 'wide' else 1)"
SAYS = """
import os, pathlib, tempfile

print("I am", os.environ["ROLE"])
kept = pathlib.Path(tempfile.gettempdir(), "triton", "kernel")
kept.parent.mkdir(exist_ok=True)
kept.write_text("as a compiler leaves it")
"""
SHOWN = "\ndef side(): return torch.cuda.Stream()\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class TellingCell(ThreadedCell):
    """Tells a runner its role."""

    def start(self, number, address, role):
        extra = {**self.extra, "ROLE": role.value}
        return super(ThreadedCell, replace(self, extra=extra)).start(number, address, role)


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
    """judged(source, device): the result, what became of runners, whether it left a cache."""
    with contextlib.ExitStack() as stack:

        def judge(source, device):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
            folder.chmod(0o711)
            told = []
            cell = TellingCell(
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
            message = {"request": encode(asked(source)), "built": encode(NOTHING), "keep": True}
            result = crew.order({"order": "evaluate", **message})
            told.remove(RunnerRole.REFERENCE)
            return result, told, crew.left is not None

        yield judge


ONCE, TWICE = [RunnerRole.NARROW, 1], [RunnerRole.NARROW, 1, RunnerRole.WIDE, 3]


@pytest.mark.parametrize(
    ("source", "device", "status", "told"),
    [
        (forward(RIGHT, SAYS), "cuda", EvalStatus.PASSED, TWICE),
        (forward(RIGHT, SAYS + SHOWN), "cuda", EvalStatus.PASSED, [RunnerRole.WIDE, 1]),
        (forward(WRONG, SAYS), "cuda", EvalStatus.WRONG_RESULT, ONCE),
        (forward(WRONG_WIDE, SAYS), "cuda", EvalStatus.WRONG_RESULT, TWICE),
        (forward(RIGHT, SAYS), "cpu", EvalStatus.PASSED, [RunnerRole.WIDE, 1]),
    ],
    ids=["nobody saw its streams", "its text has streams", "wrong", "wrong later", "no GPU"],
)
def test_who_may_have_several_streams_is_judged_with_all_connections(
    judged, source, device, status, told
):
    result, found, left = judged(source, device)
    assert (result["status"], found) == (status, told)
    assert left == (status is EvalStatus.PASSED)
    role = next(role for role in reversed(told) if isinstance(role, RunnerRole))
    assert result["log_tail"].startswith(f"I am {role.value}")
    assert (result["timing"] is not None) == (status is EvalStatus.PASSED)

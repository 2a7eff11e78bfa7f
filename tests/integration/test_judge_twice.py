"""Who is judged again with all connections to a GPU; real runners, and a CPU taken for one.

A CPU's profile says nothing of streams, so that a program that passes may have several.
"""

import functools
from dataclasses import dataclass, replace

import pytest

torch = pytest.importorskip("torch")

from builders.threaded_judge import ThreadedCell, judged_by  # noqa: E402 - torch
from builders.tiny_task import forward  # noqa: E402 - torch

from pike_hpc.evaluate.judge import Judge  # noqa: E402 - torch
from pike_hpc.evaluate.judge_host import Host  # noqa: E402
from pike_hpc.evaluate.judge_streams import Streams  # noqa: E402
from pike_hpc.evaluate.wire import RunnerRole  # noqa: E402
from pike_hpc.records import EvalStatus  # noqa: E402

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


def judged(source, device):
    """The result, what became of runners, whether it left a cache."""
    told = []
    make = functools.partial(Judge, streams=Streams(device))
    result, left = judged_by(make, functools.partial(ToldHost, told), source, TellingCell)
    told.remove(RunnerRole.REFERENCE)
    return result, told, left


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
def test_who_may_have_several_streams_is_judged_with_all_connections(source, device, status, told):
    result, found, left = judged(source, device)
    assert (result["status"], found) == (status, told)
    assert left == (status is EvalStatus.PASSED)
    role = next(role for role in reversed(told) if isinstance(role, RunnerRole))
    assert result["log_tail"].startswith(f"I am {role.value}")
    assert (result["timing"] is not None) == (status is EvalStatus.PASSED)

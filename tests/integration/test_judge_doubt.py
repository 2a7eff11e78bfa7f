"""What a judge does where the reference was slower beside a candidate than alone; real runners."""

import functools

import pytest

torch = pytest.importorskip("torch")

from builders.threaded_judge import judged_by  # noqa: E402 - torch
from builders.tiny_task import forward  # noqa: E402 - torch

from pike_hpc.evaluate.judge import Judge  # noqa: E402 - torch
from pike_hpc.evaluate.judge_guard import ATTEMPTS, TaskWatch  # noqa: E402 - torch
from pike_hpc.evaluate.judge_host import Host  # noqa: E402
from pike_hpc.evaluate.judge_link import RunnerFailed  # noqa: E402 - torch
from pike_hpc.evaluate.nvml_simulated import Sensors, SimulatedNvml  # noqa: E402
from pike_hpc.evaluate.runner import Op  # noqa: E402 - torch
from pike_hpc.records import EvalStatus  # noqa: E402

pytestmark = pytest.mark.torch


COMPILES = """
import pathlib, tempfile

kept = pathlib.Path(tempfile.gettempdir(), "triton", "kernel")
kept.parent.mkdir(exist_ok=True)
kept.write_text("as a compiler leaves it")
"""


class Gpu:
    """Sensors that are read, and what a judge asked its lane for in between.

    A process of another lane is new on the GPU whenever ours has waited for the gate, and one more
    as soon as it has let go.
    """

    def __init__(self, *held):
        """Whether others kept still, in turn; they always did afterwards."""
        self.sensors, self.asked, self.held = Sensors(sm_mhz=1755), [], list(held)
        self.read = SimulatedNvml(self.sensors).gpu().sample

    def one_more(self):
        self.sensors.computing += (4000 + len(self.sensors.computing),)

    def host(self, channel, folder):
        """A host that tells it."""
        return ToldHost(channel, folder, self)


class ToldHost(Host):
    def __init__(self, channel, folder, gpu):
        super().__init__(channel, folder)
        self._gpu = gpu

    def alone(self, runners):
        self._gpu.asked.append(("alone", *runners))
        super().alone(runners)
        self._gpu.one_more()

    def together(self):
        held = super().together()
        self._gpu.one_more()
        return held and (not self._gpu.held or self._gpu.held.pop(0))

    def kill(self, runner, grace_s):
        self._gpu.asked.append(("kill", runner))
        return super().kill(runner, grace_s)

    def leave(self, content):
        self._gpu.asked.append(("leave", len(content)))
        super().leave(content)


class Watch(TaskWatch):
    """In the place of all guards. Doubts all timings or none, and remembers what was seen alone."""

    why_not = ""

    def __init__(self, read, *, doubts, dies=False):
        super().__init__(read, drifts=True, sleep=lambda seconds: None)
        self._doubts, self._dies, self.again = doubts, dies, []

    def task(self, key):
        return self

    def doubts(self, timing):
        return self._doubts

    def believed(self, timing, time_alone):
        if self._dies:
            raise RunnerFailed(0, "gone", Op.CALL)

        def noted(guard):
            found, may_count = time_alone(guard)
            self.again.append(found)
            return found, may_count

        return super().believed(timing, noted)


def judged(gpu, watch):
    """The result of a candidate that is right, and whether it left a cache."""
    make = functools.partial(Judge, guards=watch)
    return judged_by(make, gpu.host, forward("return self.right(x)", COMPILES))


def test_a_timing_in_doubt_is_held_against_the_reference_once_the_candidate_is_gone():
    """Who comes onto the GPU while a lane waits for the gate spoils nothing."""
    gpu = Gpu()
    watch = Watch(gpu.read, doubts=True)
    result, left = judged(gpu, watch)
    assert result["status"] == EvalStatus.PASSED
    assert left
    *_, (beside, *pair), killed, again, (leaves, size) = gpu.asked
    assert (beside, len(pair)) == ("alone", 2)
    assert killed == ("kill", pair[1])
    assert again == ("alone", pair[0])
    assert (leaves, size > 0) == ("leave", True)
    assert watch.anchor is not None
    assert [found is not None for found in watch.again] == [True]


def test_one_in_no_doubt_is_not():
    gpu = Gpu()
    result, left = judged(gpu, Watch(gpu.read, doubts=False))
    assert result["status"] == EvalStatus.PASSED
    assert left
    assert [what for what, *_ in gpu.asked[-3:]] == ["alone", "leave", "kill"]


def test_a_reference_that_dies_by_then_leaves_no_verdict_and_no_cache():
    gpu = Gpu()
    result, left = judged(gpu, Watch(gpu.read, doubts=True, dies=True))
    assert result["status"] == EvalStatus.JUDGE_ERROR
    assert not left


def test_what_others_shared_is_not_what_it_takes_alone():
    gpu = Gpu(*[False] * ATTEMPTS)
    watch = Watch(gpu.read, doubts=False)
    result, _ = judged(gpu, watch)
    assert result["status"] == EvalStatus.PASSED
    assert watch.anchor is None
    assert "noisy" in result["tags"]
    assert [len(runners) for _, *runners in gpu.asked[:ATTEMPTS]] == [1] * ATTEMPTS

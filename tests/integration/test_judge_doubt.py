"""What a judge does where the reference was slower beside a candidate than alone; real runners."""

import functools
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
from pike_hpc.evaluate.judge_guard import TaskWatch  # noqa: E402 - torch
from pike_hpc.evaluate.judge_host import Host  # noqa: E402
from pike_hpc.evaluate.nvml_simulated import Sensors, SimulatedNvml  # noqa: E402
from pike_hpc.records import EvalStatus, encode  # noqa: E402

pytestmark = pytest.mark.torch


class Gpu:
    """Sensors that are read, and what a judge asked its lane for in between.

    A process of another lane is new on the GPU whenever ours has waited for the gate, and one more
    as soon as it has let go.
    """

    def __init__(self):
        self.sensors, self.asked = Sensors(sm_mhz=1755), []
        self.read = SimulatedNvml(self.sensors).gpu().sample

    def one_more(self):
        self.sensors.computing += (4000 + len(self.sensors.computing),)

    def host(self):
        """The kind of host that tells it."""
        gpu = self

        class ToldHost(Host):
            def alone(self, runners):
                gpu.asked.append(("alone", *runners))
                super().alone(runners)
                gpu.one_more()

            def together(self):
                held = super().together()
                gpu.one_more()
                return held

            def kill(self, runner, grace_s):
                gpu.asked.append(("kill", runner))
                return super().kill(runner, grace_s)

        return ToldHost


class Doubting(TaskWatch):
    """Believes no timing as it is."""

    def __init__(self, read):
        super().__init__(read, drifts=True)
        self.why_not, self.again = "", []

    def task(self, key):
        """In the place of all guards."""
        return self

    def doubts(self, timing):
        return True

    def believed(self, timing, time_alone):
        def noted(guard):
            self.again.append(time_alone(guard))
            return self.again[-1]

        return super().believed(timing, noted)


@pytest.fixture
def judged(tmp_path_factory):
    """The result of a candidate that is right, what the lane was asked for, and the watch."""
    gpu = Gpu()
    watch = Doubting(gpu.read)
    folder = Path("/tmp") / tmp_path_factory.mktemp("j").name  # a socket's path is short
    folder.mkdir(mode=0o711)
    cell = ThreadedCell(
        engine=sandbox.choose("auto", sandbox.look()),
        folder=folder / "lane",
        device="cpu",
        threads=1,
        memory_mb=2048,
        scratch_mb=1024,
        processes=64,
        extra={},
        make=functools.partial(Judge, guards=watch),
        host=gpu.host(),
    )
    crew = Crew(cell, Gate(), lambda: OPENING)
    request = encode(asked(forward("return self.right(x)")))
    try:
        message = {"request": request, "built": encode(NOTHING), "keep": False}
        yield crew.order({"order": "evaluate", **message}), gpu.asked, watch
    finally:
        crew.close()
        folder.rmdir()


def test_the_reference_is_timed_again_when_the_candidate_is_gone(judged):
    result, asked_for, watch = judged
    assert result["status"] == EvalStatus.PASSED
    *_, (beside, *pair), killed, again = asked_for
    assert beside == "alone"
    assert len(pair) == 2
    assert killed == ("kill", pair[1])
    assert again == ("alone", pair[0])
    assert watch.again


def test_who_comes_while_a_lane_waits_for_the_gate_spoils_no_timing_of_the_reference(judged):
    _, _, watch = judged
    assert watch.anchor is not None
    assert all(found is not None for found in watch.again)

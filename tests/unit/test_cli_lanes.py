"""A lane is opened with what the site says of its container."""

import dataclasses
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from builders.without_torch import lay_out

import pike_hpc
from pike_hpc.cli.judging_torch import inside, judging_torch
from pike_hpc.cli.lane_count import lanes_each
from pike_hpc.cli.lanes import LaneJudge, open_lane
from pike_hpc.evaluate.crew import JudgeLost
from pike_hpc.evaluate.device import Device, lanes_per_gpu
from pike_hpc.mailbox import MemoryMailbox
from pike_hpc.records import (
    Correctness,
    EvalRequest,
    EvalResult,
    EvalStatus,
    LegacyVerdicts,
    PikeError,
    Task,
    UsageError,
)
from pike_hpc.worker import JudgeUnwell, SimulatedJudge, Stop, WorkerOptions, run_worker

CPU = Device(kind="cpu", torch_device="cpu", why="")


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """`engine(answer, name)`: an `apptainer`, or so, that says so when its image is looked into.

    What it is asked to run it writes down, to the file that is returned.
    """

    def make(answer, name="apptainer"):
        said, programs = tmp_path / "said", tmp_path / "bin"
        programs.mkdir()
        program = programs / name
        looked = f"case \"$*\" in *importlib.metadata*) echo '{answer}';; esac"
        program.write_text(f"#!/bin/sh\necho \"$@\" >>'{said}'\n{looked}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        return said

    yield make
    inside.cache_clear()


def test_the_image_of_the_site_reaches_an_engine_that_runs_one(engine):
    """Whether or not this Python has a torch: the image's judges."""
    said = engine('{"torch": "2.13.0+cpu", "compiler": "/usr/bin/g++", "headers": true}')
    # Not below tmp_path, whose name alone is nearly as long as a socket's path may be.
    with open_lane(CPU, "apptainer", Path("/tmp"), "/images/cpu.sif") as lane:
        tried = said.read_text()
        assert "/images/cpu.sif" in tried
        with pytest.raises(PikeError, match="could not be measured"):
            _ = lane.isolation
        measured = said.read_text().removeprefix(tried).splitlines()
        assert measured
        assert all("/images/cpu.sif" in line for line in measured)


def test_a_container_is_told_the_cpus_of_the_thread_that_asks_for_it(engine):
    said = engine('{"torch": "2.13.0+cpu", "compiler": "/usr/bin/g++", "headers": true}', "podman")
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {max(before)})
        with open_lane(CPU, "podman", Path("/tmp"), "pike:cpu") as lane:
            tried = said.read_text()
            with pytest.raises(PikeError, match="could not be measured"):
                _ = lane.isolation
    finally:
        os.sched_setaffinity(0, before)
    measured = said.read_text().removeprefix(tried).splitlines()
    started = [line for line in measured if "--cap-drop" in line]
    assert started
    assert all(f" --cpus={max(before)} " in line for line in started)


def test_an_image_without_torch_is_named(engine):
    engine('{"torch": null, "compiler": null, "headers": false}')
    with (
        pytest.raises(UsageError, match=r"no torch in image /images/bare\.sif") as refused,
        open_lane(CPU, "apptainer", Path("/tmp"), "/images/bare.sif"),
    ):
        pass
    assert "make image" in refused.value.fix


def test_an_image_whose_python_is_something_else_is_named(engine):
    engine("Welcome to our cluster")
    with pytest.raises(UsageError, match="no sensible answer: 'Welcome to our cluster'"):
        judging_torch("apptainer", "/images/cpu.sif")


def test_without_image_and_torch_one_message_says_so():
    """On a machine whose Python has no torch, as a worker without an image at a cluster."""
    code = "from pike_hpc.cli.judging_torch import require_torch as f; f('auto', None)"
    with tempfile.TemporaryDirectory() as folder:
        path = f"{Path(pike_hpc.__file__).parents[1]}:{lay_out(Path(folder))}"
        command = [sys.executable, "-S", "-c", code]
        environ = {"PYTHONPATH": path, "PATH": ""}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert "neither an image nor a torch here" in done.stderr
    assert "make image SITE=" in done.stderr


class ScriptedLane:
    """A lane with one answer to everything, whose judge dies, or refuses the task, or neither."""

    def __init__(self, answer: EvalResult, *, dies: bool = False, refuses: bool = False) -> None:
        self.answer, self.lost_judge, self.task_refused = answer, dies, refuses

    def evaluate(self, request, on_phase):
        return dataclasses.replace(self.answer, key=request.key)

    def close(self):
        pass


TASK = Task(suite="s", id="1", name="t", source="x = 1")
REQUEST = EvalRequest(task=TASK, candidate_source="y", device_kind="cpu", image_digest="i")


def answer(status, message="", correctness=None):
    return EvalResult(
        key=REQUEST.key, status=status, message=message, correctness=correctness, lane_s=3.0
    )


def test_a_lane_whose_judge_died_fails_so_that_it_rests():
    died = answer(EvalStatus.JUDGE_ERROR, "the judge died: SIGKILL")
    with pytest.raises(JudgeLost, match="SIGKILL"):
        LaneJudge(ScriptedLane(died, dies=True), CPU).evaluate(REQUEST, print)
    result = LaneJudge(ScriptedLane(answer(EvalStatus.TIMEOUT)), CPU).evaluate(REQUEST, print)
    assert result.status is EvalStatus.TIMEOUT


def judged_by(judges, count):
    """Verdicts on so many requests."""
    mailbox = MemoryMailbox()
    requests = [dataclasses.replace(REQUEST, candidate_source=f"# {n}") for n in range(count)]
    for request in requests:
        mailbox.put(request)
    options = WorkerOptions(worker_id="w", poll_min_s=0.001, poll_max_s=0.01, max_idle_s=0.1)
    assert run_worker(mailbox, judges, options, stop=Stop()) == 0
    return list(mailbox.results([request.request_id for request in requests]).values())


FULL = "no space left on /tmp"


def test_a_lane_that_comes_to_no_verdict_on_anything_rests_while_others_judge():
    sick = LaneJudge(ScriptedLane(answer(EvalStatus.JUDGE_ERROR, FULL)), CPU)
    results = judged_by([sick, SimulatedJudge(CPU.kind, latency_s=0.002)], 40)
    assert len(results) == 40
    assert not [r for r in results if r.status is EvalStatus.JUDGE_ERROR]


def test_alone_it_keeps_its_word():
    lane = ScriptedLane(answer(EvalStatus.JUDGE_ERROR, FULL))
    (result,) = judged_by([LaneJudge(lane, CPU)], 1)
    assert (result.status, result.message, result.lane_s) == (EvalStatus.JUDGE_ERROR, FULL, 3.0)


def test_a_lane_that_is_only_noisy_goes_on():
    legacy = LegacyVerdicts(pike=True, kernelbench=True)
    compared = Correctness(
        relative_error=0.0, limit=1e-3, seeds=3, reference_precision="float64", legacy=legacy
    )
    noisy = answer(EvalStatus.JUDGE_ERROR, "noisy lane", compared)
    assert LaneJudge(ScriptedLane(noisy), CPU).evaluate(REQUEST, print) == noisy


def test_a_task_that_is_not_admitted_says_nothing_against_the_lane():
    """Its verdict is there at once, from whichever lane: nobody is asked twice."""
    refused = answer(EvalStatus.JUDGE_ERROR, "the task is not admitted: two answers")
    judge = LaneJudge(ScriptedLane(refused, refuses=True), CPU)
    assert judge.evaluate(REQUEST, print) == refused
    with pytest.raises(JudgeUnwell):
        LaneJudge(ScriptedLane(refused), CPU).evaluate(REQUEST, print)


@pytest.mark.parametrize(
    ("cores", "memory_mb", "lanes"),
    [
        (16, 143_771, 6),
        (64, 143_771, 6),
        (16, 81_559, 5),
        (14, 46_068, 2),
        (8, 46_068, 2),
        (3, 143_771, 1),
        (16, 0, 1),
    ],
)
def test_a_gpu_takes_as_many_lanes_as_cores_and_memory_allow(cores, memory_mb, lanes):
    assert lanes_per_gpu(cores, memory_mb) == lanes


def test_fewer_lanes_may_be_asked_for(monkeypatch):
    monkeypatch.delenv("PIKE_LANES_PER_GPU", raising=False)
    assert lanes_each(64, []) == 1, "a CPU has one lane"
    assert lanes_each(16, ["GPU-unknown"]) == 1, "whose memory nobody knows"
    monkeypatch.setenv("PIKE_LANES_PER_GPU", "1")
    assert lanes_each(16, ["GPU-unknown"]) == 1
    for wrong in ("0", "two", "-1", ""):
        monkeypatch.setenv("PIKE_LANES_PER_GPU", wrong)
        with pytest.raises(UsageError, match="PIKE_LANES_PER_GPU"):
            lanes_each(16, ["GPU-1"])

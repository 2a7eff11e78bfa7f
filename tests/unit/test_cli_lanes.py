"""A lane is opened with what the site says of its container."""

import stat
from pathlib import Path

import pytest

from pike_hpc.cli.lanes import LaneJudge, lanes_each, open_lane
from pike_hpc.evaluate import JudgeLost
from pike_hpc.evaluate.device import Device, lanes_per_gpu, torch_version
from pike_hpc.records import EvalRequest, EvalResult, EvalStatus, PikeError, Task, UsageError


@pytest.mark.skipif(torch_version() is None, reason="a lane needs an installed torch")
def test_the_image_of_the_site_reaches_an_engine_that_runs_one(tmp_path, monkeypatch):
    """An `apptainer` of our own writes down what it was asked to run."""
    said, programs = tmp_path / "said", tmp_path / "bin"
    programs.mkdir()
    program = programs / "apptainer"
    program.write_text(f'#!/bin/sh\necho "$@" >>"{said}"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    device = Device(kind="cpu", torch_device="cpu", why="")
    # Not below tmp_path, whose name alone is nearly as long as a socket's path may be.
    with open_lane(device, "apptainer", Path("/tmp"), "/images/cpu.sif") as lane:
        tried = said.read_text()
        assert "/images/cpu.sif" in tried
        with pytest.raises(PikeError, match="could not be measured"):
            _ = lane.isolation
        measured = said.read_text().removeprefix(tried).splitlines()
        assert measured
        assert all("/images/cpu.sif" in line for line in measured)


class ScriptedLane:
    """A lane whose judge dies, or does not."""

    def __init__(self, dies: bool) -> None:
        self.lost_judge = dies

    def evaluate(self, request, on_phase):
        status = EvalStatus.JUDGE_ERROR if self.lost_judge else EvalStatus.TIMEOUT
        return EvalResult(key=request.key, status=status, message="the judge died: SIGKILL")


def test_a_lane_whose_judge_died_fails_so_that_it_rests():
    task = Task(suite="s", id="1", name="t", source="x = 1")
    request = EvalRequest(task=task, candidate_source="y", device_kind="cpu", image_digest="i")
    device = Device(kind="cpu", torch_device="cpu", why="")
    with pytest.raises(JudgeLost, match="SIGKILL"):
        LaneJudge(ScriptedLane(dies=True), device).evaluate(request, print)
    result = LaneJudge(ScriptedLane(dies=False), device).evaluate(request, print)
    assert result.status is EvalStatus.TIMEOUT


@pytest.mark.parametrize(
    ("cores", "memory_mb", "lanes"),
    [
        (16, 143_771, 6),
        (64, 143_771, 6),
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

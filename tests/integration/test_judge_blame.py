"""What is not the candidate's fault: the task, the machine, the lane. And what a lane tells."""

import dataclasses
import os
import subprocess
import sys

import pytest
from builders.tiny_task import TASK, TASK_SOURCE, asked, judge

from pike_hpc.evaluate.wire import RunnerRole
from pike_hpc.records import EvalStatus, Tier

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def test_an_input_blind_task_is_not_admitted(lane):
    blind = TASK_SOURCE.replace("self.second(", "0 * self.second(")
    task = dataclasses.replace(TASK, source=blind)
    admission = lane.admit(task)
    assert not admission.admitted
    assert "input" in admission.reason
    result = judge(lane, blind, task=task)
    assert result.status is EvalStatus.JUDGE_ERROR
    assert "not admitted" in result.message


def test_a_broken_reference_is_not_the_candidates_fault(lane):
    task = dataclasses.replace(TASK, source=TASK_SOURCE.replace("[width]", "[width, 1]"))
    assert judge(lane, TASK_SOURCE, task=task).status is EvalStatus.JUDGE_ERROR


def test_admission_says_how_finely_a_task_tells(lane):
    admission = lane.admit(TASK)
    assert admission.admitted
    assert admission.noise < 1e-4 < admission.signal
    assert set(admission.limits) == set(Tier)
    assert min(admission.mutants[name] for name in ("zeros", "mean", "other_input")) > 0.4
    assert min(admission.mutants[name] for name in ("layer_skipped", "weights_zeroed")) > 0.05


def test_too_little_isolation_is_not_the_candidates_fault(lane):
    result = judge(lane, TASK_SOURCE, min_isolation="L4")
    assert result.status is EvalStatus.JUDGE_ERROR
    assert "L4" in result.message


def test_a_lost_judge_is_replaced(lane):
    killed = []

    def kill_the_judge(phase: str) -> None:
        if phase == "build" and not killed:
            killed.append(lane._crew._judge._process.pid)
            os.kill(killed[0], 9)

    assert lane.evaluate(asked(TASK_SOURCE), kill_the_judge).status is EvalStatus.JUDGE_ERROR
    assert killed
    assert lane.evaluate(asked(TASK_SOURCE)).status is EvalStatus.PASSED


def test_a_reference_that_was_killed_between_two_candidates_is_replaced(lane):
    """As the lane does with one that seemed to run while another lane timed."""
    assert lane.evaluate(asked(TASK_SOURCE)).status is EvalStatus.PASSED
    wards = lane._crew._wards
    (kept,) = (number for number, role in wards._roles.items() if role is RunnerRole.REFERENCE)
    wards._wards[kept].slay()
    result = lane.evaluate(asked(TASK_SOURCE))
    assert result.status is EvalStatus.PASSED, result.message


def test_a_busy_machine_is_said(lane):
    spin = [sys.executable, "-c", "while True: pass"]
    cores = len(os.sched_getaffinity(0))
    hogs = [subprocess.Popen(spin) for _ in range(cores)]
    try:
        result = judge(lane, TASK_SOURCE)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert result.status is EvalStatus.PASSED, result.message
    assert "noisy" in result.tags


def test_phases_are_told_in_order(lane):
    heard: list[str] = []
    lane.evaluate(asked(TASK_SOURCE), heard.append)
    assert [p for p in heard if p != "reference"] == [
        "start",
        "build",
        "correctness",
        "gate",
        "timing",
        "checks",
        "probes",
        "profile",
    ]

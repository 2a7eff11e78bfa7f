"""Attacks on what is measured: sabotage of the reference while it is timed, hidden processes."""

import sys
import time
from pathlib import Path

import pytest

from pike_hpc.evaluate.lane import Lane
from pike_hpc.evaluate.ward import Ward
from pike_hpc.records import EvalRequest, EvalResult, EvalStatus, Task, Variant

TASK_SOURCE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return [64]
"""

HIDDEN = """
import ctypes, os, threading
if os.fork() == 0:
    def spin():
        while True: pass
    threading.Thread(target=spin).start()
    ctypes.CDLL(None).pthread_exit(None)
"""
"""A process whose first thread has ended and looks like a zombie; another one works."""

WAKES_ITSELF = """
import ctypes, signal
libc = ctypes.CDLL(None)
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int),
                ("rest", ctypes.c_char * 64)]
timer = ctypes.c_void_p()
event = Event(signo=signal.SIGCONT)
signal.signal(signal.SIGCONT, lambda *a: None)
libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer))
def arm():
    libc.timer_settime(timer, 0, (ctypes.c_long * 4)(0, EVERY, 0, EVERY), None)
arm()
"""
"""A kernel timer that sends SIGCONT every EVERY nanoseconds, to a stopped process too.

Armed again and again: a SIGSTOP that meets a pending SIGCONT ends the timer.
"""

SLEEP = "\nimport time\nwhile True: time.sleep(10)\n"

FORKS = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
open(READY, "w").close()
while True:
    if os.fork() == 0:
        open(BEAT, "w").close()
        os._exit(0)
    time.sleep(0.001)
"""
"""Children that the kernel reaps: their CPU time is nobody's."""


class Kept:
    """A Python program under a warden, and the file it says `ready` in."""

    def __init__(self, program: str, folder: Path) -> None:
        self.mark = folder / "mark"
        source = program.replace("READY", repr(str(self.mark)))
        self.ward = Ward([sys.executable, "-I", "-S", "-c", source], env={}, cwd=folder, remove=[])

    def await_mark(self) -> None:
        """Until the program has made the file."""
        deadline = time.monotonic() + 20
        while not self.mark.exists():
            assert time.monotonic() < deadline, "the program did not start"
            time.sleep(0.01)


@pytest.fixture
def keep(tmp_path):
    kept: list[Kept] = []

    def start(program: str) -> Ward:
        kept.append(Kept(program + "\n", tmp_path))
        kept[-1].await_mark()
        return kept[-1].ward

    yield start
    for one in kept:
        one.ward.end()


KEEPER_S = 0.02
"""More than what a keeper needs to look: its own CPU time is counted with all below it."""


def burn(ward: Ward) -> float:
    """CPU seconds in a quarter of a second."""
    before = ward.cpu_s()
    time.sleep(0.25)
    return ward.cpu_s() - before


MARK = "\nopen(READY, 'w').close()\n"


@pytest.mark.timed
def test_a_process_whose_first_thread_ended_is_counted_stopped_and_killed(keep, tmp_path):
    beat = tmp_path / "beat"
    hidden = HIDDEN.replace("while True: pass", f"while True: open({str(beat)!r}, 'w').close()")
    ward = keep(hidden + MARK + "threading.Event().wait()")
    assert burn(ward) > 2 * KEEPER_S
    assert ward.stop()
    beat.unlink(missing_ok=True)
    assert burn(ward) <= KEEPER_S + 1e-6
    assert not beat.exists()
    assert ward.go()
    assert burn(ward) > 2 * KEEPER_S
    ward.end()
    beat.unlink(missing_ok=True)
    time.sleep(0.1)
    assert not beat.exists()


@pytest.mark.timed
def test_children_that_nobody_waits_for_are_stopped(keep, tmp_path):
    beat = tmp_path / "beat"
    ward = keep(FORKS.replace("BEAT", repr(str(beat))))
    for _ in range(3):
        assert ward.stop()
        beat.unlink(missing_ok=True)
        time.sleep(0.05)
        assert not beat.exists()
        assert ward.go()


@pytest.mark.timed
@pytest.mark.parametrize("every_ms", [2, 60])
def test_a_program_that_wakes_itself_is_noticed(keep, every_ms):
    program = WAKES_ITSELF.replace("EVERY", str(every_ms * 1_000_000))
    ward = keep(program + MARK + "import time\nwhile True:\n    arm()\n    time.sleep(0.02)")
    noticed = False
    for _ in range(5):
        stopped = ward.stop()
        time.sleep(0.15)
        noticed = noticed or not (ward.go() and stopped)
        if noticed:
            break
        time.sleep(0.05)
    assert noticed


@pytest.mark.timed
def test_what_sleeps_is_found_as_it_was_left(keep):
    ward = keep(MARK + SLEEP)
    for _ in range(3):
        assert ward.stop()
        assert ward.go()


def judge(lane: Lane, source: str, variant: Variant = Variant.ADMITTED) -> EvalResult:
    task = Task(suite="tests", id="2", name="small", source=TASK_SOURCE, variant=variant)
    request = EvalRequest(
        task=task,
        candidate_source=source,
        device_kind="cpu",
        image_digest="tests",
        timeout_s=120.0,
    )
    return lane.evaluate(request)


@pytest.mark.timed
@pytest.mark.torch
@pytest.mark.slow
def test_a_program_that_wakes_itself_is_rejected(lane):
    program = WAKES_ITSELF.replace("EVERY", "2_000_000") + TASK_SOURCE
    result = judge(lane, program.replace("        return", "        arm()\n        return", 1))
    assert result.status is EvalStatus.REJECTED, result.message
    assert "idle" in result.message


@pytest.mark.torch
@pytest.mark.slow
def test_legacy_looks_at_timed_answers_too(lane):
    lazy = TASK_SOURCE.replace(
        "        return",
        "        self.n = getattr(self, 'n', 0) + 1\n"
        "        if self.n > 4:\n"
        "            return torch.zeros(64, 64)\n"
        "        return",
        1,
    )
    result = judge(lane, lazy, Variant.LEGACY)
    assert result.status is EvalStatus.WRONG_RESULT, result.message
    assert "timed" in result.message


CASTS = """        if self.first.weight.dtype is not torch.float64:
            self.first.to(torch.float64)
        return self.second(torch.relu(self.first(x.double()).float()))"""

DROPS = """        if hasattr(self, "first"):
            self.held = [self.first.weight.clone(), self.first.bias.clone()]
            del self.first
        return self.second(torch.relu(nn.functional.linear(x, *self.held)))"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(("body", "tags"), [(CASTS, set()), (DROPS, {"caches_weights"})])
def test_weights_may_be_rewritten_at_the_first_call(lane, body, tags):
    forward = "        return self.second(torch.relu(self.first(x)))"
    result = judge(lane, TASK_SOURCE.replace(forward, body))
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
    assert set(result.tags) & {"caches_weights"} == tags

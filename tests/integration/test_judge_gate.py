"""Lanes that share a device, with real judges on this CPU: frozen, thawed, evicted, killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pike_hpc import sandbox
from pike_hpc.evaluate.crew import Crew
from pike_hpc.evaluate.gate import SHORTAGES, Gate
from pike_hpc.evaluate.lane import Lane
from pike_hpc.evaluate.warden import descendants, stat_of
from pike_hpc.records import EvalRequest, EvalResult, EvalStatus, Task

pytestmark = [pytest.mark.torch, pytest.mark.slow]

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
OTHER_SOURCE = TASK_SOURCE.replace("relu", "tanh")

WAKES_ITSELF = """
import ctypes, os, signal, subprocess, threading, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.signal(signal.SIGCONT, lambda *a: None)
libc = ctypes.CDLL(None)
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int),
                ("rest", ctypes.c_char * 64)]
timer = ctypes.c_void_p()
libc.timer_create(1, ctypes.byref(Event(signo=signal.SIGCONT)), ctypes.byref(timer))
def work():
    while True:
        libc.timer_settime(timer, 0, (ctypes.c_long * 4)(0, 60_000_000, 0, 60_000_000), None)
        if os.fork() == 0:
            os._exit(0)
        time.sleep(0.02)
threading.Thread(target=work, daemon=True).start()
"""

FROZEN_S = 16.0
"""Longer than the program that is frozen may take; it takes seconds."""

WORKER = """
import sys, time
from pathlib import Path
sys.path[:0] = [sys.argv[1], sys.argv[2]]
from test_judge_gate import Other, open_lane, request, processes
from pike_hpc.evaluate.gate import Gate
import json
gate, other = Gate(), Other()
gate.join(other)
def freeze(phase):
    if phase == "correctness":
        gate.hold(other)
        # What was amid a system call stops at its end.
        patience = time.monotonic() + 60
        while set(processes().values()) != {"T"} and time.monotonic() < patience:
            time.sleep(0.05)
        print(json.dumps(processes()), flush=True)
        time.sleep(1000)
with open_lane(gate, Path(sys.argv[3]), spares=True) as lane:
    lane.evaluate(request(), freeze)
"""


class Other:
    """Another lane of the gate, with no process."""

    def __init__(self) -> None:
        self.gave_way = 0

    def freeze(self) -> None: ...

    def thaw(self) -> bool:
        return True

    def evict(self) -> None: ...

    def give_way(self) -> None:
        self.gave_way += 1


def open_lane(gate: Gate, scratch: Path, **options) -> Lane:
    engine = sandbox.choose("auto", sandbox.look())
    limits = {"threads": 1, "memory_mb": 2048, "processes": 64}
    return Lane("cpu", engine, scratch=scratch, gate=gate, **limits, **options)


def request(source: str = TASK_SOURCE, task: str = TASK_SOURCE, **changes) -> EvalRequest:
    return EvalRequest(
        task=Task(suite="tests", id="1", name="small", source=task),
        candidate_source=source,
        device_kind="cpu",
        image_digest="tests",
        **{"timeout_s": 120.0, "min_isolation": "L0", **changes},
    )


def cmdline(pid: int) -> bytes:
    """A process's words; empty where it ended since it was listed."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


EARLIER: set[int] = set()
"""Processes below this one that were there before: compilers that other tests' torch keeps."""


@pytest.fixture(scope="module", autouse=True)
def _know_earlier_processes():
    EARLIER.update(descendants())


def processes() -> dict[int, str]:
    """State of each process below this one that these tests started and that isn't a warden."""
    found = {}
    for pid in set(descendants()) - EARLIER:
        fields = stat_of(pid)
        if fields and fields[0] != "Z" and b"evaluate/warden" not in cmdline(pid):
            found[pid] = fields[0]
    return found


@pytest.fixture(scope="class")
def scratch():
    """Short: a socket's path has 107 bytes at most."""
    folder = Path("/tmp") / f"pike-gate-{os.getpid()}"
    yield folder
    assert list(folder.iterdir()) == []
    folder.rmdir()


@pytest.fixture(scope="class")
def gate():
    return Gate[Crew | Other]()


@pytest.fixture(scope="class")
def other(gate):
    one = Other()
    gate.join(one)
    return one


@pytest.fixture(scope="class")
def lane(gate, scratch):
    with open_lane(gate, scratch) as lane:
        yield lane


@pytest.mark.timed
def test_two_lanes_judge_side_by_side_and_time_alone(gate, scratch):
    results: dict[int, EvalResult] = {}
    start = time.monotonic()
    with open_lane(gate, scratch) as first, open_lane(gate, scratch) as second:

        def judge(number: int, lane: Lane) -> None:
            for _ in range(2):
                results[number] = lane.evaluate(request())

        threads = [threading.Thread(target=judge, args=pair) for pair in enumerate((first, second))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    passed_s = time.monotonic() - start
    for result in results.values():
        assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
        assert 0 < result.gpu_exclusive_s < result.lane_s
    assert sum(result.lane_s for result in results.values()) < passed_s
    assert not processes()


@pytest.mark.timed
class TestBesideAnother:
    """A lane whose device is taken from it in the middle of an evaluation."""

    def test_the_frozen_stand_still_and_lose_no_time(self, gate, other, lane):
        seen: list[dict[int, str]] = []

        def freeze(phase: str) -> None:
            if phase == "build":
                gate.hold(other)
                seen.append(processes())
                time.sleep(FROZEN_S)
                seen.append(processes())
                assert gate.give_back(other)

        result = lane.evaluate(request(timeout_s=FROZEN_S - 1.0), freeze)
        assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
        assert len(seen[0]) >= 3
        assert seen[0].keys() == seen[1].keys()
        # What was amid a system call stops at its end, and rests until then.
        assert {"T"} <= {*seen[0].values(), *seen[1].values()} <= {"T", "D"}

    def test_who_runs_while_frozen_is_killed_and_judged_beside_the_other_again(
        self, gate, other, lane
    ):
        gave_way = other.gave_way
        heard: list[str] = []
        held: list[bool] = []

        def freeze(phase: str) -> None:
            # A SIGSTOP that meets a pending SIGCONT ends the timer: it is armed again until it is
            # seen.
            heard.append(phase)
            while phase == "correctness" and len(held) < 20 and False not in held:
                gate.hold(other)
                time.sleep(0.15)
                held.append(gate.give_back(other))
                time.sleep(0.05)

        result = lane.evaluate(request(WAKES_ITSELF + TASK_SOURCE), freeze)
        again = lane.evaluate(request())
        # Halves of a timing are shorter than its timer: it is found out by chance only (who wakes
        # itself sooner always is: test_judge_attacks).
        assert result.status in (EvalStatus.REJECTED, EvalStatus.PASSED), result.message
        assert heard.count("start") == 2
        assert other.gave_way == gave_way
        assert held[-1] is False
        assert again.status is EvalStatus.PASSED, again.message

    def test_an_evicted_candidate_is_judged_again_alone(self, gate, other, lane):
        heard: list[str] = []
        gave_way = other.gave_way

        def evict(phase: str) -> None:
            heard.append(phase)
            if phase == "correctness" and heard.count("correctness") == 1:
                gate.hold(other)
                gate.evict(other)
                gate.give_back(other)

        result = lane.evaluate(request(), evict)
        assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
        assert heard.count("start") == 2
        assert other.gave_way == gave_way + 1

    def test_a_judge_that_dies_alone_gives_the_device_back(self, gate, other, lane):
        def kill(phase: str) -> None:
            if phase == "timing":
                judges = [p for p in processes() if b"judge_process import main" in cmdline(p)]
                os.kill(judges[0], signal.SIGKILL)

        result = lane.evaluate(request(), kill)
        assert result.status is EvalStatus.JUDGE_ERROR
        assert lane.lost_judge
        gate.hold(other)
        gate.give_back(other)
        assert lane.evaluate(request()).status is EvalStatus.PASSED
        assert not lane.lost_judge


GREEDY = """
import time
import torch
if time.time() < UNTIL:
    raise torch.OutOfMemoryError("out of memory")
"""
ROOM_S = 40.0
"""Until it has room; the first attempt fails before that, once its judge has started."""


def test_a_task_that_needs_the_whole_device_gets_it_on_one_lane(gate, scratch):
    heard: list[str] = []

    def wait(phase: str) -> None:
        heard.append(phase)
        if heard.count("start") == 2:
            time.sleep(max(0.0, until - time.time()))

    task = request().task.digest
    with open_lane(gate, scratch) as home, open_lane(gate, scratch) as second:
        for _ in range(SHORTAGES - 1):
            gate.settle(task, home._crew)
        assert second.evaluate(request(OTHER_SOURCE, OTHER_SOURCE)).status is EvalStatus.PASSED
        until = time.time() + ROOM_S
        greedy = GREEDY.replace("UNTIL", repr(until)) + TASK_SOURCE
        assert home.evaluate(request(greedy), wait).status is EvalStatus.PASSED
        assert heard.count("start") == 2
        assert gate.home(task) is home._crew
        before = processes().keys()
        assert second.evaluate(request()).status is EvalStatus.PASSED
        assert before <= processes().keys()
        # Its own tasks it judges as before, the reference's runner started anew.
        assert second.evaluate(request(OTHER_SOURCE, OTHER_SOURCE)).status is EvalStatus.PASSED


def test_a_candidate_that_takes_all_memory_takes_no_lane_from_its_task(gate, other, lane):
    heard: list[str] = []
    result = lane.evaluate(request(GREEDY.replace("UNTIL", "1e12") + TASK_SOURCE), heard.append)
    assert result.status is EvalStatus.OUT_OF_MEMORY
    assert heard.count("start") == 2
    assert gate.home(request().task.digest) is None


def test_a_lane_closed_while_frozen_leaves_nothing(gate, other, scratch):
    lane = open_lane(gate, scratch)

    def close(phase: str) -> None:
        if phase == "correctness":
            gate.hold(other)
            lane.close()

    result = lane.evaluate(request(), close)
    assert result.status is EvalStatus.JUDGE_ERROR
    assert not processes()


def test_a_worker_killed_while_frozen_leaves_nothing(scratch):
    root = Path(__file__).resolve().parents[2]
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(root), str(Path(__file__).parent), str(scratch)],
        stdout=subprocess.PIPE,
    )
    assert worker.stdout is not None
    frozen = json.loads(worker.stdout.readline())
    worker.kill()
    worker.wait()
    worker.stdout.close()
    assert len(frozen) >= 3
    assert set(frozen.values()) == {"T"}
    deadline = time.monotonic() + 60
    while left := [pid for pid in map(int, frozen) if stat_of(pid)] or list(scratch.iterdir()):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def newcomers(lane: Lane) -> set[int]:
    """Processes that started between the start of an evaluation and its candidate's build."""
    seen: dict[str, set[int]] = {}
    fails = "class ModelNew:\n    raise RuntimeError"
    result = lane.evaluate(request(fails), lambda phase: seen.update({phase: set(processes())}))
    assert result.status is EvalStatus.BUILD_ERROR, result
    return seen["build"] - seen["start"]


def test_the_next_candidate_finds_its_runner_started(gate, other, scratch):
    with open_lane(gate, scratch, spares=True) as lane:
        assert lane.evaluate(request()).status is EvalStatus.PASSED
        assert not newcomers(lane)
        assert lane.evaluate(request()).status is EvalStatus.PASSED
        gate.hold(other)
        gate.evict(other)
        gate.give_back(other)
        assert newcomers(lane), "the spare one was killed"

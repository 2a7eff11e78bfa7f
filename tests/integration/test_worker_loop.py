"""A worker on a real mailbox: it ends all work, obeys, survives its judge, and comes back."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pike_hpc.mailbox import FileMailbox, MemoryMailbox, QueueCounts
from pike_hpc.mailbox.files import Files
from pike_hpc.records import EvalRequest, EvalResult, EvalStatus, Task, TryAgainLater
from pike_hpc.worker import SimulatedJudge, Stop, WorkerOptions, run_worker

TASK = Task(suite="s", id="1", name="one", source="x")

PROGRAM = """
import sys
from pathlib import Path
from pike_hpc.mailbox import FileMailbox
from pike_hpc.worker import SimulatedJudge, WorkerOptions, run_worker
root, latency_s, drain_s = sys.argv[1:]
options = WorkerOptions(worker_id="same", max_idle_s=1, drain_s=float(drain_s), heartbeat_s=0.2)
sys.exit(run_worker(FileMailbox(Path(root)), [SimulatedJudge("cpu", latency_s=float(latency_s))],
                    options))
"""


def request(number: int) -> EvalRequest:
    return EvalRequest(
        task=TASK, candidate_source=f"# {number}", device_kind="cpu", image_digest="i"
    )


def options(**changes: object) -> WorkerOptions:
    base = {"worker_id": "w", "max_idle_s": 0.2, "heartbeat_s": 0.1, "expected_s": 0.0}
    return WorkerOptions(**(base | changes))


def start(root: Path, latency_s: float, drain_s: float = 0.0) -> subprocess.Popen:
    argv = [sys.executable, "-c", PROGRAM, str(root), str(latency_s), str(drain_s)]
    return subprocess.Popen(argv)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def is_judging(mailbox: FileMailbox) -> Callable[[], bool]:
    return lambda: any(seen.beat.state == "judging" for seen in mailbox.workers())


class ScriptedJudge:
    """Judges by a function."""

    device_kind = "cpu"

    def __init__(self, judge: Callable[[EvalRequest], EvalResult]) -> None:
        self._judge = judge
        self.closed = 0

    def evaluate(self, request: EvalRequest, on_phase: Callable[[str], None]) -> EvalResult:
        on_phase("scripted")
        return self._judge(request)

    def close(self) -> None:
        self.closed += 1


def test_all_work_is_done_then_the_worker_leaves_when_idle():
    mailbox, judge = MemoryMailbox(), SimulatedJudge("cpu")
    requests = [request(i) for i in range(30)]
    for one in requests:
        mailbox.put(one)
    assert run_worker(mailbox, [judge], options(), stop=Stop(), rng=random.Random(0)) == 0
    assert mailbox.counts() == QueueCounts(new=0, claimed=0, done=30, dead=0)
    assert mailbox.workers() == ()


def test_an_idle_worker_is_woken_by_what_comes(tmp_path):
    """It would look again in an hour."""
    mailbox, stop = FileMailbox(tmp_path, shared=False), Stop()
    patient = options(max_idle_s=None, poll_min_s=3600.0, watched_s=3600.0)
    judge = SimulatedJudge("cpu")
    worker = threading.Thread(
        target=run_worker, args=(mailbox, [judge], patient), kwargs={"stop": stop}
    )
    worker.start()
    other = FileMailbox(tmp_path)
    for number in range(20):
        until(lambda: [seen.beat.state for seen in other.workers()] == ["idle"])
        other.put_many([request(2 * number), request(2 * number + 1)])
        until(lambda number=number: other.counts().done == 2 * number + 2)
    stop.request("enough")
    worker.join(60)
    assert not worker.is_alive()


class LateMailbox(MemoryMailbox):
    """The first look finds nothing; something comes right after it."""

    def claim(self, worker_id, device_kinds, limit):
        found = super().claim(worker_id, device_kinds, limit)
        if not self.counts().done and not self.counts().new and not found:
            self.put(request(1))
        return found


def test_it_looks_once_more_before_it_leaves_for_idleness():
    mailbox, seldom = LateMailbox(), options(poll_min_s=100.0, poll_max_s=100.0)
    assert run_worker(mailbox, [SimulatedJudge("cpu")], seldom, stop=Stop()) == 0
    assert mailbox.counts() == QueueCounts(new=0, claimed=0, done=1, dead=0)


def test_a_closed_mailbox_sends_the_worker_home_though_requests_wait():
    mailbox, judge = MemoryMailbox(), ScriptedJudge(lambda r: pytest.fail("judged"))
    mailbox.put(request(1))
    mailbox.close()
    assert run_worker(mailbox, [judge], options(max_idle_s=None), stop=Stop()) == 0
    assert judge.closed == 1
    assert mailbox.counts().new == 1


def test_no_evaluation_is_begun_that_may_not_fit_into_the_walltime():
    mailbox = MemoryMailbox()
    mailbox.put(request(1))
    late = options(max_idle_s=None, walltime_end=1000.0, expected_s=60.0, walltime_margin_s=10.0)
    judge = ScriptedJudge(lambda r: pytest.fail("judged"))
    assert run_worker(mailbox, [judge], late, stop=Stop(), wall=lambda: 931.0) == 0
    assert mailbox.counts().new == 1
    judge = SimulatedJudge("cpu")
    early = options(walltime_end=1000.0, expected_s=60.0, walltime_margin_s=10.0)
    assert run_worker(mailbox, [judge], early, stop=Stop(), wall=lambda: 929.0) == 0
    assert mailbox.counts().done == 1


def test_a_failing_judge_is_a_result_and_the_worker_goes_on():
    def judge(one: EvalRequest) -> EvalResult:
        if one == request(0):
            raise SystemExit("lane\nbroken")
        if one == request(1):
            return EvalResult(key=request(2).key, status=EvalStatus.TIMEOUT)
        if one == request(2):
            return EvalResult(key=one.key, status=EvalStatus.TIMEOUT, lane_s=float("nan"))
        return EvalResult(key=one.key, status=EvalStatus.TIMEOUT)

    mailbox, ids = MemoryMailbox(), []
    for i in range(4):
        mailbox.put(request(i))
        ids.append(request(i).request_id)
    assert run_worker(mailbox, [ScriptedJudge(judge)], options(), stop=Stop()) == 0
    results = [mailbox.results(ids)[i] for i in ids]
    assert [r.status for r in results[:2]] == [EvalStatus.JUDGE_ERROR] * 2
    assert "SystemExit: lane broken" in results[0].message
    assert "Traceback" in results[0].log_tail
    assert results[3].status is EvalStatus.TIMEOUT


def test_a_verdict_that_can_not_be_written_becomes_a_judge_error(tmp_path):
    mailbox = FileMailbox(tmp_path)
    mailbox.put(request(1))

    def judge(one: EvalRequest) -> EvalResult:
        return EvalResult(key=one.key, status=EvalStatus.TIMEOUT, lane_s=float("nan"))

    assert run_worker(mailbox, [ScriptedJudge(judge)], options(), stop=Stop()) == 0
    (result,) = mailbox.results([request(1).request_id]).values()
    assert result.status is EvalStatus.JUDGE_ERROR
    assert "can't be written" in result.message


def test_one_verdict_that_can_not_be_written_keeps_no_other_from_its_commit(tmp_path):
    mailbox, together = FileMailbox(tmp_path), threading.Barrier(2)
    sent = [request(0), request(1)]
    mailbox.put_many(sent)

    def judge(one: EvalRequest) -> EvalResult:
        together.wait(60)
        lane_s = float("nan") if one == sent[0] else 1.0
        return EvalResult(key=one.key, status=EvalStatus.TIMEOUT, lane_s=lane_s)

    judges = [ScriptedJudge(judge) for _ in sent]
    assert run_worker(mailbox, judges, options(), stop=Stop()) == 0
    found = mailbox.results([one.request_id for one in sent])
    assert [found[one.request_id].status for one in sent] == [
        EvalStatus.JUDGE_ERROR,
        EvalStatus.TIMEOUT,
    ]


class FullDisk(Files):
    """No space for results while `full`."""

    def __init__(self) -> None:
        self.full = False
        self.refused = 0

    def write_new(self, path: Path, data: bytes, *, durable: bool = True) -> None:
        if self.full and data.startswith(b"pike-hpc EvalResult"):
            self.refused += 1
            if self.refused == 3:
                self.full = False
            raise TryAgainLater("no space")
        super().write_new(path, data, durable=durable)


def test_a_result_is_kept_while_the_disk_is_full(tmp_path):
    files = FullDisk()
    mailbox = FileMailbox(tmp_path, files=files)
    mailbox.put(request(1))
    files.full = True
    assert run_worker(mailbox, [SimulatedJudge("cpu")], options(), stop=Stop()) == 0
    assert files.refused == 3
    assert mailbox.counts() == QueueCounts(new=0, claimed=0, done=1, dead=0)


def test_a_disk_that_stays_full_ends_in_try_again_later(tmp_path):
    files, stop = FullDisk(), Stop()
    mailbox = FileMailbox(tmp_path, files=files)
    mailbox.put(request(1))
    files.full, files.refused = True, 3

    def judge(one: EvalRequest) -> EvalResult:
        stop.request("SIGTERM")
        return EvalResult(key=one.key, status=EvalStatus.TIMEOUT)

    late = options(drain_s=0.3)
    assert run_worker(mailbox, [ScriptedJudge(judge)], late, stop=stop) == 75
    assert mailbox.counts().claimed == 1
    assert mailbox.requeue_lost(stale_s=1e9, is_alive=lambda b: False) == 1


def test_a_judge_that_ignores_its_closing_does_not_keep_the_worker():
    mailbox, stop, never = MemoryMailbox(), Stop(), threading.Event()

    def judge(one: EvalRequest) -> EvalResult:
        stop.request("SIGINT")
        stop.request("SIGINT", now=True)
        never.wait(7)
        return EvalResult(key=one.key, status=EvalStatus.TIMEOUT)

    mailbox.put(request(1))
    assert run_worker(mailbox, [ScriptedJudge(judge)], options(drain_s=99), stop=stop) == 0
    assert mailbox.counts() == QueueCounts(new=1, claimed=0, done=0, dead=0)
    never.set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_a_signal_lets_the_evaluation_in_flight_end(tmp_path, number):
    mailbox = FileMailbox(tmp_path)
    for i in range(3):
        mailbox.put(request(i))
    worker = start(tmp_path, latency_s=1.0, drain_s=60)
    until(is_judging(mailbox))
    worker.send_signal(number)
    assert worker.wait(60) == 0
    counts = mailbox.counts()
    assert (counts.done >= 1, counts.claimed, counts.new + counts.done) == (True, 0, 3)
    assert mailbox.workers() == ()


def test_a_signal_hands_back_what_does_not_end_in_time(tmp_path):
    mailbox = FileMailbox(tmp_path)
    mailbox.put(request(1))
    worker = start(tmp_path, latency_s=300, drain_s=0.2)
    until(is_judging(mailbox))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    (claim,) = mailbox.claim("v", frozenset({"cpu"}))
    assert claim.attempt == 1


def test_killed_workers_are_replaced_and_the_third_death_is_the_verdict(tmp_path):
    mailbox = FileMailbox(tmp_path)
    mailbox.put(request(0))
    for _ in range(3):
        worker = start(tmp_path, latency_s=300)
        until(is_judging(mailbox))
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
        assert mailbox.requeue_lost(stale_s=1e9) == 1
    (dead,) = mailbox.results([request(0).request_id]).values()
    assert dead.status is EvalStatus.WORKER_LOST
    mailbox.put(request(1))
    assert start(tmp_path, latency_s=0).wait(60) == 0
    assert mailbox.counts() == QueueCounts(new=0, claimed=0, done=2, dead=1)


def test_a_worker_takes_over_what_a_killed_one_of_the_same_id_held(tmp_path):
    mailbox = FileMailbox(tmp_path)
    for i in range(5):
        mailbox.put(request(i))
    first = start(tmp_path, latency_s=300)
    until(is_judging(mailbox))
    first.kill()
    first.wait()
    assert start(tmp_path, latency_s=0).wait(60) == 0
    assert mailbox.counts() == QueueCounts(new=0, claimed=0, done=5, dead=0)

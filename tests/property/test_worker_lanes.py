"""Any order in which lanes finish, break, and are told to stop: every request is committed once
or waits in the queue again; none is lost, none is judged by two."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from pike_hpc.mailbox import Claim, MemoryMailbox
from pike_hpc.records import EvalRequest, EvalResult, EvalStatus, Task
from pike_hpc.worker import Stop, WorkerOptions, run_worker

DRAIN_S = 3.0
TASKS = [Task(suite="s", id=str(i), name=f"T{i}", source=f"x = {i}") for i in range(3)]


def request(number: int) -> EvalRequest:
    return EvalRequest(
        task=TASKS[number % len(TASKS)],
        candidate_source=f"# {number}",
        device_kind="gpu",
        image_digest="i",
    )


class Gates:
    """Where evaluations wait until the script lets them end, and how each ends."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.words: dict[str, str] = {}

    def open(self, request_id: str, word: str) -> None:
        with self.changed:
            self.words[request_id] = word
            self.changed.notify_all()


class GatedJudge:
    """Judges what its gate says, when it says so; one at a time."""

    device_kind = "gpu"

    def __init__(self, gates: Gates) -> None:
        self._gates = gates
        self.judged: list[str] = []
        self.closed = False
        self._inside = threading.Lock()

    def evaluate(self, request: EvalRequest, on_phase: Callable[[str], None]) -> EvalResult:
        assert self._inside.acquire(blocking=False), "one lane was given two requests"
        try:
            on_phase("gated")
            self.judged.append(request.request_id)
            with self._gates.changed:
                words = self._gates.words
                self._gates.changed.wait_for(lambda: self.closed or request.request_id in words)
                word = words.pop(request.request_id, "closed")
            if word != "pass":
                raise OSError(f"lane {word}")
            return EvalResult(key=request.key, status=EvalStatus.TIMEOUT)
        finally:
            self._inside.release()

    def close(self) -> None:
        with self._gates.changed:
            self.closed = True
            self._gates.changed.notify_all()


class NotedMailbox(MemoryMailbox):
    """Knows what is in hand, and counts commits."""

    def __init__(self) -> None:
        super().__init__()
        self.in_hand: list[str] = []
        self.committed: Counter[str] = Counter()
        self.released: list[str] = []
        self.tried: list[str] = []
        """Given back because their lane broke."""
        self.most_claimed = self.most_committed = 0
        self.while_claiming: Callable[[], None] = lambda: None

    def claim(self, worker_id, device_kinds, limit=1):
        claims = super().claim(worker_id, device_kinds, limit)
        self.while_claiming()
        self.most_claimed = max(self.most_claimed, self.counts().claimed)
        return claims

    def judging(self, claim: Claim) -> bool:
        self.in_hand.append(claim.request.request_id)
        return super().judging(claim)

    def commit_many(self, judged):
        told = super().commit_many(judged)
        for (claim, _), won in zip(judged, told, strict=True):
            self.committed[claim.request.request_id] += won
            self.in_hand.remove(claim.request.request_id)
        self.most_committed = max(self.most_committed, len(judged))
        return told

    def release(self, claim: Claim, *, tried: bool = False) -> None:
        super().release(claim, tried=tried)
        if tried:
            self.in_hand.remove(claim.request.request_id)
            self.tried.append(claim.request.request_id)
        else:
            self.released.append(claim.request.request_id)


class Script(Stop):
    """Each time the worker sleeps, its clock moves on and the next thing happens."""

    def __init__(self, mailbox: NotedMailbox, gates: Gates, steps: list[tuple[str, int]]) -> None:
        self._ended = threading.Semaphore(0)
        super().__init__()
        self.now = 0.0
        self._mailbox, self._gates, self._steps = mailbox, gates, steps
        self._next = 1000
        self.put: list[str] = []
        self.in_time: list[str] = []
        """Ended while the worker still waited for it."""
        self._stopped_at = float("inf")

    def put_more(self, count: int) -> None:
        for _ in range(count):
            self._next += 1
            one = request(self._next)
            self._mailbox.put(one)
            self.put.append(one.request_id)

    def wait(self, timeout_s: float) -> None:
        self.now += max(timeout_s, 0.001)
        waiting = [each for each in self._mailbox.in_hand if each not in self._gates.words]
        if not self._steps:
            for each in waiting if self.reason is None else ():
                self._finish(each, "pass")
            return
        kind, number = self._steps.pop(0)
        if kind == "put":
            self.put_more(number)
        elif kind == "stop":
            self.request("SIGTERM", now=number == 0)
            self._stopped_at = self.now
        elif kind == "stop while claiming":
            self._mailbox.while_claiming = lambda: self.request("SIGTERM")
        elif kind == "nap":
            self.now += number
        elif kind == "pass all":
            for each in waiting:
                self._finish(each, "pass")
        elif waiting:
            self._finish(waiting[number % len(waiting)], kind)

    def _finish(self, request_id: str, word: str) -> None:
        self._gates.open(request_id, word)
        in_time = not self.hurried and self.now - self._stopped_at < DRAIN_S / 2
        if in_time and word == "pass":
            self.in_time.append(request_id)
        assert self._ended.acquire(timeout=20.0), "the lane never rang"

    def ring(self) -> None:
        if threading.current_thread().name == "judge":
            self._ended.release()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.integers(0, 7)),
        st.tuples(st.just("break"), st.integers(0, 7)),
        st.tuples(st.just("pass all"), st.just(0)),
        st.tuples(st.just("put"), st.integers(1, 5)),
        st.tuples(st.just("nap"), st.integers(1, 20)),
    ),
    max_size=25,
)
STOPS = st.sampled_from([("stop", 0), ("stop", 1), ("stop while claiming", 0)])
ENDS = st.one_of(st.just([]), st.tuples(STOPS, STEPS).map(lambda end: [end[0], *end[1]]))


@settings(max_examples=120)
@given(lanes=st.integers(1, 5), waiting=st.integers(0, 9), before=STEPS, end=ENDS)
def test_every_request_is_committed_once_or_queued_again(lanes, waiting, before, end):
    mailbox, gates = NotedMailbox(), Gates()
    script = Script(mailbox, gates, [*before, *end])
    script.put_more(waiting)
    judges = [GatedJudge(gates) for _ in range(lanes)]
    # Longer than all naps together: what comes while it leaves for idleness stays in the queue.
    options = WorkerOptions(worker_id="w", max_idle_s=600.0, drain_s=DRAIN_S, expected_s=0.0)
    code = run_worker(mailbox, judges, options, stop=script, clock=lambda: script.now)
    assert code == 0
    judged = Counter(each for judge in judges for each in judge.judged)
    counts = mailbox.counts()
    assert (counts.claimed, counts.dead) == (0, 0)
    assert set(mailbox.committed.values()) <= {1}
    assert counts.done == len(mailbox.committed)
    assert counts.new + counts.done == len(script.put)
    # Judged once, or once more where its lane broke: never by two lanes, nor after its verdict.
    tries = Counter(mailbox.tried)
    assert set(tries.values()) <= {1}
    assert all(count <= 1 + tries[each] for each, count in judged.items())
    assert set(mailbox.committed) <= set(judged)
    assert set(mailbox.committed).isdisjoint(mailbox.released)
    assert mailbox.most_claimed <= lanes
    assert all(judge.closed for judge in judges)
    assert mailbox.workers() == ()
    assert set(script.in_time) <= set(mailbox.committed)
    if script.reason is None:
        assert set(mailbox.committed) == set(script.put)


def test_lanes_that_end_together_are_committed_together():
    mailbox, gates = NotedMailbox(), Gates()
    script = Script(mailbox, gates, [("pass all", 0)])
    script.put_more(3)
    options = WorkerOptions(worker_id="w", max_idle_s=600.0, drain_s=DRAIN_S, expected_s=0.0)
    judges = [GatedJudge(gates) for _ in range(3)]
    assert run_worker(mailbox, judges, options, stop=script, clock=lambda: script.now) == 0
    assert set(mailbox.committed) == set(script.put)
    assert mailbox.most_committed == 3

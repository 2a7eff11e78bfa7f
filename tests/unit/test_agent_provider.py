"""A provider that refuses or fails ends the sitting in order: noted, explained, resumable."""

import concurrent.futures
import errno
import math
import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from builders.flaky_mailbox import BEFORE, FlakyMailbox
from builders.searches import open_search, task_setup

from pike_hpc.agent import AgentOptions, Models, Seat, run_agent
from pike_hpc.journal import OsDisk, read_task
from pike_hpc.llm import (
    ModelRefused,
    ModelUnavailable,
    RecordingModel,
    ScriptedModel,
    Waits,
    load_script,
)
from pike_hpc.llm.retry import Transient
from pike_hpc.mailbox import MemoryMailbox
from pike_hpc.records import Paused, QueryFailed, Role, Tier
from pike_hpc.search import Limits, QueryState, make_strategy
from pike_hpc.tasks import find_task
from pike_hpc.worker import SimulatedJudge

LIMITS = Limits(queries=6, evaluations=10)


class FailingModel(ScriptedModel):
    """A provider that fails some tasks' requests and answers the rest."""

    def __init__(self, error, failing=""):
        super().__init__(load_script("default"))
        self.error, self.failing, self.asked = error, failing, 0

    def complete(self, request):
        if request.request_key.startswith(self.failing):
            self.asked += 1
            raise self.error
        return super().complete(request)


def sit(run_dir, model, task_ids):
    """One sitting; (outcome, controllers)."""
    seat = Seat(model=model, temperature=0.0, max_output_tokens=100)
    models = Models({role: seat for role in Role}, tuple(Tier))
    mailbox, judge = MemoryMailbox(), SimulatedJudge(device_kind="cpu", seed=1)
    controllers = [controller(run_dir, task_id, mailbox, models) for task_id in task_ids]

    def work(_seconds):
        for claim in mailbox.claim("w", frozenset(["cpu"]), limit=5):
            mailbox.judging(claim)
            mailbox.commit(claim, judge.evaluate(claim.request, lambda _: None))

    try:
        outcome = run_agent(
            controllers, AgentOptions(), clock=lambda: 0.0, sleep=work, stopping=lambda: False
        )
    finally:
        for one in controllers:
            one.close()
        models.close()
    return outcome, controllers


def controller(run_dir, task_id, mailbox, models, disk=None):
    task = find_task(f"level3-pike/{task_id}")
    options = {"branches": 2, "fix_attempts": 1}
    strategy = make_strategy(
        "pike_b", options=options, seed=0, limits=LIMITS, portfolio=(), has_model=True
    )
    return open_search(run_dir, task_setup(task, strategy, LIMITS), mailbox, models, disk)


@pytest.mark.parametrize(
    ("error", "code"),
    [(ModelRefused("no such key"), 2), (ModelUnavailable("nobody is there"), 75)],
)
def test_a_failing_provider_is_asked_once_and_leaves_a_note(tmp_path, error, code):
    model = FailingModel(error)
    outcome, (one,) = sit(tmp_path, model, ["4"])
    assert (outcome.finished, outcome.exit_code) == (False, code)
    assert error.what in outcome.reason
    assert model.asked == 1
    failed, paused = (s.event for s in read_task(tmp_path, "level3-pike_4")[-2:])
    assert isinstance(failed, QueryFailed)
    assert paused == Paused(reason=str(error), exit_code=code)
    assert one.view.spent.queries == 0, "what was not answered is not paid"


def test_the_same_command_continues_once_the_provider_is_back(tmp_path):
    sit(tmp_path, FailingModel(ModelUnavailable("down")), ["4"])
    outcome, (one,) = sit(tmp_path, ScriptedModel(load_script("default")), ["4"])
    assert outcome.finished
    assert one.view.spent.queries == LIMITS.queries


def test_a_task_whose_provider_fails_does_not_stop_the_others(tmp_path):
    digest = find_task("level3-pike/4").digest[:12]
    model = FailingModel(ModelRefused("not this one"), failing=digest)
    outcome, (refused, served) = sit(tmp_path, model, ["4", "8"])
    assert outcome.exit_code == 2
    assert refused.view.finished is None
    assert served.view.finished is not None


def test_a_client_that_breaks_down_ends_its_task_alone(tmp_path):
    digest = find_task("level3-pike/4").digest[:12]
    model = FailingModel(RuntimeError("a bug in a client"), failing=digest)
    outcome, (broken, served) = sit(tmp_path, model, ["4", "8"])
    assert outcome.exit_code == 1
    assert "RuntimeError: a bug in a client" in outcome.reason
    assert broken.view.spent.queries == 1, "nobody knows whether it was paid"
    assert served.view.finished is not None


def test_an_answer_that_cannot_be_recorded_is_kept(tmp_path):
    """A tape on a device that is always full; what was paid is in the journal all the same."""
    model = RecordingModel(ScriptedModel(load_script("default")), tmp_path / "tape.jsonl")
    (tmp_path / "tape.jsonl").symlink_to("/dev/full")
    outcome, (one,) = sit(tmp_path, model, ["4"])
    assert (outcome.finished, outcome.exit_code) == (False, 75)
    assert "could not be recorded: No space left" in outcome.reason
    assert one.view.outcomes, "ideas were made of the answer"
    assert one.view.spent.queries == 1


class Disobedient(OsDisk):
    """Fails to sync one task's journal once it is told to."""

    fails = False

    def sync(self, fd):
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(fd)


def test_at_a_stop_one_task_that_fails_loses_no_other_its_answer(tmp_path):
    model, disk, mailbox = SlowModel(answer_s=3.0), Disobedient(), MemoryMailbox()
    seat = Seat(model=model, temperature=0.0, max_output_tokens=100)
    models = Watched({role: seat for role in Role}, tuple(Tier))
    models.sent = []
    bad = controller(tmp_path, "4", mailbox, models, disk)
    good = controller(tmp_path, "8", mailbox, models)

    def stopping():
        disk.fails = len(models.sent) == 2
        return disk.fails

    outcome = run_agent(
        [bad, good],
        AgentOptions(),
        clock=lambda: model.now,
        sleep=lambda step_s: model.pass_time(step_s, models.sent),
        stopping=stopping,
    )
    disk.fails = False
    assert outcome.exit_code == 75
    assert not good.view.in_flight
    assert [query.state for query in good.view.queries.values()] == [QueryState.ANSWERED]
    good.close()
    bad.close()
    models.close()


class Limited(ScriptedModel):
    """A provider that is at its limit: it is asked again until nobody waits."""

    def __init__(self, waits):
        super().__init__(load_script("default"))
        self.waits, self.asked = waits, threading.Event()

    def complete(self, request):
        self.asked.set()
        try:
            self.waits.sleep(3600)
        except Transient as error:
            raise ModelUnavailable(error.what) from None


@pytest.mark.parametrize("once", [False, True])
def test_who_leaves_does_not_pay_for_what_waits_to_be_asked_again(tmp_path, once):
    waits = Waits()
    model = Limited(waits)
    seat = Seat(model=model, temperature=0.0, max_output_tokens=100)
    models = Watched({role: seat for role in Role}, tuple(Tier), waits=waits)
    models.sent = []
    one = controller(tmp_path, "4", MemoryMailbox(), models)
    now = [0.0]

    def sleep(seconds):
        assert model.asked.wait(20)
        now[0] += 30.0
        if now[0] > 60.0:
            concurrent.futures.wait(models.sent, timeout=20)

    outcome = run_agent(
        [one],
        AgentOptions(once=once, sitting_s=60.0),
        clock=lambda: now[0],
        sleep=sleep,
        stopping=lambda: False,
    )
    assert (outcome.finished, outcome.exit_code) == (False, 0)
    assert not one.view.in_flight
    assert one.view.spent.queries == 0
    one.close()
    models.close()


class OneLate(ScriptedModel):
    """The second program comes when it is let go."""

    def __init__(self):
        super().__init__(load_script("default"))
        self.let_go = threading.Event()

    def complete(self, request):
        if "/b1/" in request.request_key:
            assert self.let_go.wait(20)
        return super().complete(request)


def test_a_mailbox_in_trouble_costs_no_answer_that_is_on_its_way(tmp_path):
    model, mailbox = OneLate(), FlakyMailbox(lambda _name: BEFORE)
    seat = Seat(model=model, temperature=0.0, max_output_tokens=100)
    models = Watched({role: seat for role in Role}, tuple(Tier))
    models.sent = []
    one = controller(tmp_path, "4", mailbox, models)

    def sleep(_seconds):
        if one.mailbox_trouble is not None:
            model.let_go.set()
        concurrent.futures.wait(models.sent, timeout=0.01)

    outcome = run_agent(
        [one],
        AgentOptions(once=True),
        clock=lambda: 0.0,
        sleep=sleep,
        stopping=lambda: False,
    )
    assert (outcome.finished, outcome.exit_code) == (False, 75)
    assert "the mailbox does not answer" in outcome.reason
    assert {query.state for query in one.view.queries.values()} == {QueryState.ANSWERED}
    assert len(one.view.queries) == 3
    one.close()
    models.close()


class SlowModel(ScriptedModel):
    """Answers so many seconds after it was asked, on a clock that passes when told."""

    def __init__(self, answer_s):
        super().__init__(load_script("default"))
        self.now, self.asked, self.open = 0.0, 0, []
        self._answer_s = answer_s
        self._changed = threading.Condition()

    def complete(self, request):
        with self._changed:
            self.asked += 1
            self.open.append(self.now + self._answer_s)
            due = self.open[-1]
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self.now >= due, timeout=20)
        return replace(super().complete(request), latency_s=self._answer_s)

    def pass_time(self, seconds, sent):
        """Everything asked has arrived before, and everything due is answered after it."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.open) == len(sent), timeout=20)
            self.now += seconds
            self._changed.notify_all()
        late = sum(due > self.now for due in self.open)
        while sum(not future.done() for future in sent) > late:
            concurrent.futures.wait(sent, timeout=0.01)


class Watched(Models):
    """Keeps what was sent."""

    def send(self, prepared):
        self.sent.append(super().send(prepared))
        return self.sent[-1]


def look_in(run_dir, model, seconds):
    """`agent --once --max-seconds` on one task, nobody judges; (time it took, its view)."""
    seat = Seat(model=model, temperature=0.0, max_output_tokens=100)
    models = Watched({role: seat for role in Role}, tuple(Tier))
    models.sent = []
    one = controller(run_dir, "4", MemoryMailbox(), models)
    try:
        run_agent(
            [one],
            AgentOptions(in_flight=100, once=True, sitting_s=seconds),
            clock=lambda: model.now,
            sleep=lambda step_s: model.pass_time(step_s, models.sent),
            stopping=lambda: False,
        )
    finally:
        one.close()
        models.close()
        took_s = model.now
        model.pass_time(math.inf, models.sent)
    return took_s, one.view


def test_one_tick_waits_for_open_model_calls_as_long_as_it_may(tmp_path):
    model = SlowModel(answer_s=7.0)
    took_s, view = look_in(tmp_path, model, 60.0)
    assert 14.0 <= took_s < 30.0, "the ideas, then two programs at once"
    assert model.asked == 3
    assert view.in_flight == ()
    assert len(view.requested) >= 1, "what was answered is to be judged"


def test_one_tick_leaves_when_its_time_is_over(tmp_path):
    model = SlowModel(answer_s=1000.0)
    took_s, view = look_in(tmp_path, model, 60.0)
    assert 60.0 <= took_s < 61.0
    assert len(view.in_flight) == 1, "the next agent journals it as lost"


def test_nothing_is_asked_that_will_not_be_answered_in_time(tmp_path):
    model = SlowModel(answer_s=40.0)
    took_s, view = look_in(tmp_path, model, 60.0)
    assert model.asked == 1, "the programs would come 20 s too late, and be paid"
    assert view.in_flight == ()
    assert took_s < 60.0
    again = SlowModel(answer_s=40.0)
    _, view = look_in(tmp_path, again, 60.0)
    assert again.asked == 2, "in the first half of its time it always asks"


class Stuck(ScriptedModel):
    """Answers no program, and counts who asked."""

    def __init__(self):
        super().__init__(load_script("default"))
        self.asked, self.changed = 0, threading.Condition()
        self.left = threading.Event()

    def complete(self, request):
        if request.role is Role.BRAINSTORM:
            return super().complete(request)
        with self.changed:
            self.asked += 1
            self.changed.notify_all()
        self.left.wait(20)
        return super().complete(request)


def test_what_is_not_sent_yet_is_not_reserved(tmp_path):
    """Eight tasks want ten programs each; 64 are asked for at once, and no more are charged."""
    model = Stuck()
    seat = Seat(model=model, temperature=0.0, max_output_tokens=100)
    models = Models({role: seat for role in Role}, tuple(Tier))
    limits = Limits(queries=100)
    strategy = make_strategy(
        "pike_b", options={}, seed=0, limits=limits, portfolio=(), has_model=True
    )
    tasks = [find_task(f"level3-pike/{i}") for i in ("4", "8", "13", "17", "20", "29", "31", "33")]
    mailbox = MemoryMailbox()
    controllers = [
        open_search(tmp_path, task_setup(task, strategy, limits), mailbox, models) for task in tasks
    ]
    for one in controllers:
        one.advance(0)
    while not all(len(one.view.outcomes) for one in controllers):
        for one in controllers:
            one.collect()
    for one in controllers:
        one.advance(0)
    with model.changed:
        assert model.changed.wait_for(lambda: model.asked == 64, timeout=20)
    assert sum(len(one.view.in_flight) for one in controllers) == 64
    assert models.room == 0
    assert not controllers[-1].advance(0)
    model.left.set()
    while models.room == 0:
        controllers[0].collect()
    assert controllers[-1].advance(0), "there is room again, so it asks"
    for one in controllers:
        one.close()
    models.close()


SILENT = """
import threading
from pike_hpc.agent.queries import Models, Prepared, Seat
from pike_hpc.records import Tier

class Silent:
    def complete(self, request):
        asked.set()
        threading.Event().wait()

asked = threading.Event()
models = Models({}, tuple(Tier))
seat = Seat(model=Silent(), temperature=0.0, max_output_tokens=1)
models.send(Prepared(reserved=None, request=None, seat=seat))
assert asked.wait(10)
models.close()
print("left")
"""


def test_a_provider_that_says_nothing_does_not_hold_the_agent_back():
    done = subprocess.run(
        [sys.executable, "-c", SILENT], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "left\n"

"""The end of a wall budget, for any machine: nothing new begins, and all winners come first.

Workers of a simulated clock claim in order and take as long as drawn. Whatever the tasks, lanes and
times: no search's request is begun once its search has ended, what was begun counts, and no task
asks for a second timing while another still waits to ask for its first.
"""

import itertools
import tempfile
from dataclasses import replace
from pathlib import Path

from builders.searches import by_rules, open_search, task_setup
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pike_hpc.agent import AgentOptions, run_agent
from pike_hpc.mailbox import MemoryMailbox
from pike_hpc.search import Limits
from pike_hpc.tasks import find_task
from pike_hpc.worker import SimulatedJudge

CPU = frozenset(["cpu"])
RULES = ("identity", "compile_default", "channels_last", "half_body")
PORTFOLIO = tuple((rule,) for rule in RULES) + tuple(itertools.combinations(RULES[1:], 2))
TASKS = [find_task(f"level3-pike/{task_id}") for task_id in ("4", "8", "13", "17", "29")]


class Watched(MemoryMailbox):
    """A mailbox that checks who asks."""

    def __init__(self):
        super().__init__()
        self.controllers = []

    def put(self, request):
        mine = next((c for c in self.controllers if c.setup.task == request.task), None)
        if mine is not None and request.retime and mine.retimes_asked > 1:
            waiting = [c for c in self.controllers if c.search_ended and not c.retimes_asked]
            assert not [c.setup.task.key for c in waiting if c.retimes_left], "winners come first"
        return super().put(request)


class Machine:
    """Lanes that judge on a clock of their own."""

    def __init__(self, mailbox, lanes, durations, seed):
        self.now = 0.0
        self._mailbox, self._durations = mailbox, itertools.cycle(durations)
        self._judge = SimulatedJudge(device_kind="cpu", seed=seed)
        self._lanes = [None] * lanes
        self.committed = []

    def sleep(self, seconds):
        end = self.now + 4 * seconds  # an agent that looks seldom
        while True:
            for lane, busy in enumerate(self._lanes):
                if busy is None:
                    self._lanes[lane] = self._begin()
            ends = [busy[0] for busy in self._lanes if busy is not None]
            if not ends or min(ends) > end:
                break
            self.now = min(ends)
            self._lanes = [self._step(busy) for busy in self._lanes]
        self.now = end

    def _begin(self):
        claims = self._mailbox.claim("w", CPU)
        if not claims:
            return None
        request = claims[0].request
        assert self._mailbox.judging(claims[0])
        owner = next(c for c in self._mailbox.controllers if c.setup.task == request.task)
        assert request.retime or not owner.search_ended, "begun after its search had ended"
        lasts = next(self._durations)
        return self.now + lasts, claims[0], lasts

    def _step(self, busy):
        if busy is None or busy[0] > self.now:
            return busy
        _, claim, lasts = busy
        verdict = replace(self._judge.evaluate(claim.request, lambda _: None), lane_s=lasts)
        if self._mailbox.commit(claim, verdict):
            self.committed.append(claim.request)
        return None


def controller(folder, task, mailbox, evaluations):
    limits = Limits(evaluations=evaluations)
    setup = task_setup(task, by_rules(PORTFOLIO, limits), limits)
    return open_search(folder, setup, mailbox)


@settings(max_examples=25)
@given(
    tasks=st.integers(1, len(TASKS)),
    lanes=st.integers(1, 4),
    evaluations=st.integers(1, len(PORTFOLIO)),
    durations=st.lists(st.floats(0.5, 60.0), min_size=1, max_size=12),
    wall_s=st.sampled_from([0.0, 60.0, 200.0, 600.0]),
    seed=st.integers(0, 9),
)
@example(3, 3, 3, [1.0, 27.0, 30.0, 1.0, 29.0, 6.0, 3.0], 60.0, 0).via("finished too early")
def test_when_time_is_up_winners_come_first(tasks, lanes, evaluations, durations, wall_s, seed):
    mailbox = Watched()
    machine = Machine(mailbox, lanes, durations, seed)
    with tempfile.TemporaryDirectory() as folder:
        for task in TASKS[:tasks]:
            mailbox.controllers.append(controller(Path(folder), task, mailbox, evaluations))
        outcome = run_agent(
            mailbox.controllers,
            AgentOptions(in_flight=2 * lanes, wall_s=wall_s),
            clock=lambda: machine.now,
            sleep=machine.sleep,
            stopping=lambda: False,
        )
        for one in mailbox.controllers:
            one.close()
    assert outcome.finished
    assert not wall_s or machine.now <= wall_s + 15.0
    views = {c.setup.task.digest: c.view for c in mailbox.controllers}
    for request in machine.committed:
        view = views[request.task.digest]
        known = view.retimed if request.retime else view.results
        assert request.candidate.id in known, "what was begun counts"

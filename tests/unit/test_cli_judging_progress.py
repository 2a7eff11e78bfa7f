"""Lines of programs that several judges have at once: whole, and numbered as they begin."""

import io
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from builders.results import passed

from pike_hpc.cli.baselines_plan import Entry
from pike_hpc.cli.judging_progress import Progress, ToldJudge
from pike_hpc.records import EvalRequest, Task
from pike_hpc.worker import JudgeUnwell
from pike_hpc.worker.judge import judge_error

ENTRIES = {
    name: Entry(task=Task(suite="s", id="1", name="Tiny", source="x"), setting=name, source=name)
    for name in ("eager", "half")
}


class Waiting:
    """Gives its verdict once it is let; without one it is lost."""

    device_kind = "cpu"

    def __init__(self, speedup=None):
        self.began, self.go, self._speedup = threading.Event(), threading.Event(), speedup

    def evaluate(self, request, on_phase):
        self.began.set()
        assert self.go.wait(20)
        if self._speedup is None:
            raise ConnectionError("gone")
        return passed(request.key, self._speedup)

    def close(self):
        self.go.set()


@pytest.fixture
def asked():
    """(entries by request, requests)."""
    requests = [
        EvalRequest(
            task=entry.task,
            candidate_source=entry.source,
            device_kind="cpu",
            image_digest="none",
        )
        for entry in ENTRIES.values()
    ]
    entries = zip((r.request_id for r in requests), ENTRIES.values(), strict=True)
    return dict(entries), requests


def test_of_two_at_once_each_has_a_whole_line(asked):
    entries, requests = asked
    log, kept = io.StringIO(), []
    progress = Progress(log, 2)
    progress.alone = False
    slow, quick = Waiting(1.5), Waiting(2.0)
    judges = [ToldJudge(judge, progress, entries, kept.append) for judge in (slow, quick)]
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(judges[0].evaluate, requests[0], str)
        assert slow.began.wait(20)
        quick.go.set()
        judges[1].evaluate(requests[1], str)
        assert log.getvalue().startswith("[2/2] s/1 Tiny · half … PASSED")
        assert log.getvalue().count("\n") == 1
        slow.go.set()
        first.result(20)
    assert log.getvalue().splitlines()[1].startswith("[1/2] s/1 Tiny · eager … PASSED")
    assert [result.timing.speedup for result in kept] == [2.0, 1.5]


def test_one_alone_is_named_before_its_verdict(asked):
    entries, requests = asked
    log, judge = io.StringIO(), Waiting(1.0)
    told = ToldJudge(judge, Progress(log, 2), entries, lambda result: None)
    with ThreadPoolExecutor(1) as pool:
        verdict = pool.submit(told.evaluate, requests[0], str)
        assert judge.began.wait(20)
        assert log.getvalue() == "[1/2] s/1 Tiny · eager … "
        judge.go.set()
        verdict.result(20)
    assert log.getvalue().endswith(" s\n")


def test_a_judge_that_could_not_decide_says_why_and_judges_on(asked):
    entries, requests = asked
    log, kept, full = io.StringIO(), [], judge_error(requests[0], "no space left")

    class Full(Waiting):
        def evaluate(self, request, on_phase):
            raise JudgeUnwell(full)

    told = ToldJudge(Full(), Progress(log, 2), entries, kept.append)
    assert told.evaluate(requests[0], str) is full
    assert "no space left" in log.getvalue()
    assert kept == [full]


def test_a_judge_that_is_lost_ends_its_line_and_keeps_nothing(asked):
    entries, requests = asked
    log, kept = io.StringIO(), []
    judge = Waiting()
    judge.go.set()
    told = ToldJudge(judge, Progress(log, 2), entries, kept.append)
    with pytest.raises(ConnectionError):
        told.evaluate(requests[0], str)
    assert log.getvalue() == "[1/2] s/1 Tiny · eager … no verdict\n"
    assert kept == []

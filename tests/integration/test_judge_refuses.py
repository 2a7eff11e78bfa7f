"""A task that is not admitted, before a real lane on the CPU: a verdict, and no reason to rest."""

import pytest

pytest.importorskip("torch")

from builders.tiny_task import TASK, TASK_SOURCE, asked, forward

from pike_hpc.cli.lanes import LaneJudge
from pike_hpc.evaluate.device import Device
from pike_hpc.mailbox import MemoryMailbox
from pike_hpc.records import EvalStatus, Evaluated, Task, TaskOpened
from pike_hpc.search import replay, why_unjudgeable
from pike_hpc.worker import JudgeUnwell, Stop, WorkerOptions, run_worker

pytestmark = [pytest.mark.torch, pytest.mark.slow]

CPU = Device(kind="cpu", torch_device="cpu", why="")
RANDOM = Task(
    suite="tests",
    id="random",
    name="random",
    source=TASK_SOURCE.replace("return self.second(", "return torch.rand_like(x) + self.second("),
)
RAISES = Task(
    suite="tests",
    id="raises",
    name="raises",
    source=TASK_SOURCE.replace("return self.second(", "return self.third("),
)


def programs(task, count):
    sources = [forward("return self.right(x)") + f"# {number}\n" for number in range(count)]
    return [asked(source, task=task) for source in sources]


class Counted:
    """A judge, and how often it was asked."""

    device_kind = "cpu"

    def __init__(self, inner):
        self.asked, self._inner = 0, inner

    def evaluate(self, request, on_phase):
        self.asked += 1
        return self._inner.evaluate(request, on_phase)

    def close(self):
        pass  # the lane is the module's


def test_every_program_is_tried_once(lane):
    mailbox, judge = MemoryMailbox(), Counted(LaneJudge(lane, CPU))
    requests = programs(RANDOM, 2)
    for request in requests:
        mailbox.put(request)
    options = WorkerOptions(worker_id="w", poll_min_s=0.001, poll_max_s=0.01, max_idle_s=0.1)
    assert run_worker(mailbox, [judge], options, stop=Stop()) == 0
    results = mailbox.results([request.request_id for request in requests]).values()
    assert [result.status for result in results] == [EvalStatus.JUDGE_ERROR] * 2
    assert judge.asked == 2


def test_the_search_ends_the_task_all_the_same(lane):
    judge, view = LaneJudge(lane, CPU), replay([TaskOpened(task=RANDOM, device_kind="cpu")])
    for request in programs(RANDOM, 12):
        assert why_unjudgeable(view) is None
        view.apply(Evaluated(result=judge.evaluate(request, print)))
    said = why_unjudgeable(view)
    assert said.startswith("Of 12 programs none could be judged")
    assert "not admitted: the reference gives two answers" in said


def test_what_fails_otherwise_is_still_a_reason_to_rest(lane):
    judge = LaneJudge(lane, CPU)
    refused, failing, good = (programs(task, 1)[0] for task in (RANDOM, RAISES, TASK))
    assert judge.evaluate(refused, print).status is EvalStatus.JUDGE_ERROR
    assert lane.task_refused
    with pytest.raises(JudgeUnwell, match="third"):
        judge.evaluate(failing, print)
    assert judge.evaluate(refused, print).status is EvalStatus.JUDGE_ERROR
    assert judge.evaluate(asked("no (Python"), print).status is EvalStatus.BUILD_ERROR
    assert not lane.task_refused, "no judge was asked"
    assert judge.evaluate(refused, print).status is EvalStatus.JUDGE_ERROR
    passed = judge.evaluate(good, print)
    assert passed.status is EvalStatus.PASSED, passed.message
    assert not lane.task_refused

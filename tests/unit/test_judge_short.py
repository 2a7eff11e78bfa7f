"""Whose verdict it is when the GPU's memory ends while a candidate is judged."""

import math
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate import judge_bench  # noqa: E402
from pike_hpc.evaluate.judge import Judge  # noqa: E402
from pike_hpc.evaluate.judge_bench import Bench, Crowded, Shortage, Unfit  # noqa: E402
from pike_hpc.evaluate.judge_exam import SEEDS  # noqa: E402
from pike_hpc.evaluate.judge_failures import (  # noqa: E402
    cannot_share,
    explain,
    not_started,
    ran_short,
)
from pike_hpc.evaluate.judge_host import Ending  # noqa: E402
from pike_hpc.evaluate.judge_link import RunnerFailed  # noqa: E402
from pike_hpc.evaluate.judge_memory import Place  # noqa: E402
from pike_hpc.evaluate.judge_outcome import Outcome  # noqa: E402
from pike_hpc.evaluate.judge_room import PLENTY_BYTES  # noqa: E402
from pike_hpc.evaluate.judge_secrets import Secrets  # noqa: E402
from pike_hpc.evaluate.judge_streams import Streams  # noqa: E402
from pike_hpc.evaluate.judge_truth import WeightsBy  # noqa: E402
from pike_hpc.evaluate.judge_verdict import NeedSeed  # noqa: E402
from pike_hpc.evaluate.judge_warm import Warm  # noqa: E402
from pike_hpc.evaluate.runner import Code, Op  # noqa: E402
from pike_hpc.evaluate.runner.cuda_driver import DeviceMemoryError  # noqa: E402
from pike_hpc.records import EvalRequest, EvalStatus, Task  # noqa: E402

pytestmark = pytest.mark.torch

CPU, SECRETS = torch.device("cpu"), Secrets(bytes(32))
GIB = 1 << 30
TOTAL, REFERENCE = 80 * GIB, 10 * GIB
TASK = Task(
    suite="tests",
    id="1",
    name="memory",
    source="import torch\nclass Model(torch.nn.Module):\n    pass\n\n\n"
    "def get_inputs():\n    return []\n\n\ndef get_init_inputs():\n    return []\n",
)
REQUEST = EvalRequest(
    task=TASK,
    candidate_source="",
    device_kind="simulated",
    image_digest="none",
)

SHORTAGES = [
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("CUDA error: out of memory"),
    RunnerFailed(1, "code", Op.CALL, Code.OUT_OF_MEMORY),
    DeviceMemoryError("full", call="cuMemCreate", result="CUDA_ERROR_OUT_OF_MEMORY"),
    Shortage("reference and candidate do not fit onto the GPU together"),
]
OTHERS = [
    RunnerFailed(1, "gone", Op.CALL),
    RuntimeError("an illegal memory access was encountered"),
    Unfit("the task is not admitted"),
]


class Candidate:
    """A runner that holds memory until it is ended."""

    def __init__(self, held, *, attached=True):
        self.number, self.attached, self._held, self._alive = 2, attached, held, True

    @property
    def held(self):
        return self._held if self._alive else 0

    def end(self, grace_s=0.0):
        self._alive = False
        return Ending(status=None, tail="its log")


def judged(candidate, *errors, reference=REFERENCE, tail=""):
    """The result, and the judge, where judging on weights of one kind and the other raises.

    `reference`: what its runner holds by then; 0: it was ended. `tail`: of its log.
    """
    bench = Bench(TASK, None, CPU, Place.HOST, SECRETS)
    bench._device = torch.device("cuda")
    bench._footprint = REFERENCE
    gpu = SimpleNamespace(held=reference)
    bench._runner = Caller(gpu, 0, tail=tail) if reference else None
    bench._free_bytes = lambda enough=0: TOTAL - gpu.held - candidate.held
    bench.start = lambda: None
    forgotten = []
    judge = object.__new__(Judge)
    judge._host = SimpleNamespace(phase=lambda name: None)
    judge._warm = SimpleNamespace(
        spares=SimpleNamespace(take=lambda role: candidate),
        bench=lambda task: bench,
        forget=lambda task: forgotten.append(task) or bench.close(),
        moves_to_host=lambda failed: False,
        shed=lambda task: None,
    )
    judge._streams = Streams("cpu")
    raised = iter(errors)

    def judge_it(*args):
        raise next(raised)

    judge._judge = judge_it
    judge._record = lambda request, outcome, tail: outcome
    outcome = judge.evaluate(REQUEST)
    assert isinstance(outcome, Outcome)
    assert not candidate.held
    return outcome, judge, forgotten


@pytest.mark.parametrize("error", SHORTAGES, ids=repr)
def test_a_candidate_that_leaves_no_room_ran_out_of_memory(error):
    outcome, judge, forgotten = judged(Candidate(69 * GIB), error)
    assert outcome.status is EvalStatus.OUT_OF_MEMORY
    assert "held 69.0 GiB" in outcome.message
    assert "takes 10.0 GiB and 1.0 GiB were left" in outcome.message
    assert not judge.short, "the lane knows by the status"
    assert forgotten == [TASK]


@pytest.mark.parametrize("error", SHORTAGES, ids=repr)
@pytest.mark.parametrize(
    ("held", "attached"),
    [(10.9 * GIB, True), (0, True), (69 * GIB, False)],
    ids=["as large as the reference", "small", "not begun"],
)
def test_a_task_that_does_not_fit_is_no_fault_of_a_candidate(error, held, attached):
    outcome, judge, _ = judged(Candidate(held, attached=attached), error)
    assert outcome.status is EvalStatus.JUDGE_ERROR
    assert judge.short


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: no")])
def test_nor_where_its_share_of_the_gpu_is_left(error):
    """The host ran short, of which a candidate's limits are kept elsewhere."""
    outcome, judge, _ = judged(Candidate(40 * GIB), error)
    assert outcome.status is EvalStatus.JUDGE_ERROR
    assert judge.short


@pytest.mark.parametrize(
    ("tail", "status"),
    [
        ("terminate called: CUDA error: out of memory", EvalStatus.OUT_OF_MEMORY),
        ("Segmentation fault", EvalStatus.JUDGE_ERROR),
    ],
)
def test_a_reference_that_ends_for_want_of_it_is_as_one_that_says_so(tail, status):
    failed = RunnerFailed(1, "gone", Op.CALL)
    outcome, judge, _ = judged(Candidate(69 * GIB), failed, tail=tail)
    assert outcome.status is status
    assert not judge.short
    outcome, judge, _ = judged(Candidate(0), failed, tail=tail)
    assert outcome.status is EvalStatus.JUDGE_ERROR
    assert judge.short is (status is EvalStatus.OUT_OF_MEMORY), "then it is tried alone"


def test_a_runner_that_found_no_memory_to_start_in_is_the_neighbours_doing():
    crowded = Crowded("no memory to start in")
    outcome, judge, forgotten = judged(Candidate(69 * GIB, attached=False), crowded)
    assert outcome.status is EvalStatus.JUDGE_ERROR
    assert (judge.short, judge.crowded) == (True, True)
    assert not forgotten
    outcome, _, _ = judged(Candidate(69 * GIB), NeedSeed(None), crowded, reference=0)
    assert outcome.status is EvalStatus.OUT_OF_MEMORY, "unless the candidate has it all"
    _, judge, _ = judged(Candidate(0), Shortage("no room"))
    assert (judge.short, judge.crowded) == (True, False)


def test_what_a_reference_held_that_was_ended_was_not_there_for_it():
    outcome, _, _ = judged(Candidate(69 * GIB), Shortage("no room"), reference=0)
    assert outcome.status is EvalStatus.OUT_OF_MEMORY
    assert "takes 10.0 GiB and 1.0 GiB were left" in outcome.message


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_nor_is_what_is_no_want_of_memory(error):
    outcome, judge, _ = judged(Candidate(69 * GIB), error)
    assert outcome.status is EvalStatus.JUDGE_ERROR
    assert not judge.short


def test_a_candidate_that_holds_it_while_weights_by_seed_are_made_ready_is_told_so():
    outcome, _, _ = judged(Candidate(69 * GIB), NeedSeed(None), Shortage("no room"))
    assert outcome.status is EvalStatus.OUT_OF_MEMORY


def test_the_reference_takes_no_less_when_its_weights_come_from_a_seed(monkeypatch):
    """Its runner holds the other model already, of whose memory the new one is made."""
    truth = SimpleNamespace(large=False, forget_inputs=lambda: None)
    bench = Bench(TASK, None, CPU, Place.HOST, SECRETS)
    bench.truth = lambda by: (truth, None)
    bench.shared = lambda by: None
    bench._reference = lambda by, shared: setattr(bench, "_runner_has", by)
    monkeypatch.setattr(judge_bench, "set_paper", lambda *_: None)
    monkeypatch.setattr(judge_bench, "answer", lambda *_: SimpleNamespace(cost_s=0.0))
    looks = iter([80 * GIB, 70 * GIB, 70 * GIB, 80 * GIB, 74 * GIB])
    bench._free_bytes = lambda enough=0: next(looks)
    for by in WeightsBy:
        bench.exam(by, None)
        assert bench._footprint == 10 * GIB
    bench._end_reference()
    bench.exam(WeightsBy.STATE, None)
    assert bench._footprint == 6 * GIB, "a new runner is measured anew"


class Caller:
    """A reference's runner: what its calls take of the GPU, it holds until it gives it back."""

    number = 1
    has_ended = False

    def __init__(self, gpu, takes, *, fails=None, tail=""):
        self._gpu, self._takes, self._fails, self._tail = gpu, takes, fails, tail
        self.asked = []

    def attach(self, shared, candidate):
        if self._fails is not None:
            raise self._fails

    def allow(self, seconds):
        self.allowed_s = seconds

    def space(self):
        return torch.zeros(0, dtype=torch.uint8)

    def staged(self, packed):
        return packed

    def window(self, op, packed, raw, *, goes_on=False):
        self.asked.append(op)
        self._hold(self._takes)

    def do(self, op, **given):
        self.asked.append(op)
        if op is Op.SHED:
            self._hold(0)

    def end(self):
        self._hold(0)
        return Ending(status=1, tail=self._tail)

    def _hold(self, much):
        self._gpu.held = much


def bench_with(caller, gpu, monkeypatch, *, cost_s):
    """A bench on a GPU whose exams cost so much to prepare, with this reference."""
    weights = SimpleNamespace(constructor_seed=1)
    frame = SimpleNamespace(output_slots=())
    truth = SimpleNamespace(large=False, forget_inputs=lambda: None, weights=weights, frame=frame)
    exam = SimpleNamespace(cost_s=cost_s, inputs=(torch.zeros(1, dtype=torch.uint8),) * SEEDS)
    bench = Bench(TASK, SimpleNamespace(take=lambda role: caller), CPU, Place.HOST, SECRETS)
    bench._device = torch.device("cuda")
    bench.truth = lambda by: (truth, None)
    bench.shared = lambda by: None
    bench.looks = []

    def free(enough=math.inf):
        bench.looks.append(enough)
        return gpu.free - gpu.held

    bench._free_bytes = free
    monkeypatch.setattr(judge_bench, "set_paper", lambda *_: None)

    def answer(paper, truth, runner):
        runner.window(Op.CALL, None, None)
        return exam

    monkeypatch.setattr(judge_bench, "answer", answer)
    return bench


@pytest.mark.parametrize("cost_s", [0.0, 9.0], ids=["fresh exams", "one exam"])
def test_a_reference_has_its_memory_again_before_room_is_demanded(monkeypatch, cost_s):
    gpu = SimpleNamespace(free=25 * GIB, held=0)
    caller = Caller(gpu, REFERENCE)
    bench = bench_with(caller, gpu, monkeypatch, cost_s=cost_s)
    for _ in range(5):
        bench.exam(WeightsBy.STATE, None)
        bench.reference(WeightsBy.STATE, None)
        assert gpu.held == REFERENCE
        bench.demand_room()
        bench.shed()
        assert caller.allowed_s < 60, "a verdict waits for it"
        assert gpu.held == 0
    gpu.free = 19 * GIB
    bench.exam(WeightsBy.STATE, None)
    bench.reference(WeightsBy.STATE, None)
    with pytest.raises(Shortage, match=r"10\.0 GiB, and 9\.0 GiB are left"):
        bench.demand_room()


def test_all_goes_back_before_a_footprint_is_measured_and_else_where_there_is_less_than_plenty(
    monkeypatch,
):
    gpu = SimpleNamespace(free=85 * GIB, held=0)
    caller = Caller(gpu, 40 * GIB)  # more than PLENTY_BYTES
    bench = bench_with(caller, gpu, monkeypatch, cost_s=0.0)
    bench.exam(WeightsBy.STATE, None)
    assert bench.looks == [math.inf, math.inf]
    for _ in range(2):
        bench.looks.clear()
        bench.exam(WeightsBy.STATE, None)
        bench.reference(WeightsBy.STATE, None)
        bench.demand_room()
        assert bench.looks == [40 * GIB] * 3
    bench._footprint = GIB
    bench.demand_room()
    assert bench.looks[-1] == PLENTY_BYTES
    bench._end_reference()
    bench.looks.clear()
    bench.reference(WeightsBy.STATE, None)
    assert math.inf in bench.looks, "it is loaded anew"


def test_a_reference_that_was_loaded_anew_is_called_as_often_as_in_an_exam(monkeypatch):
    """Or it keeps fewer answers than it will."""
    gpu = SimpleNamespace(free=25 * GIB, held=0)
    caller = Caller(gpu, REFERENCE)
    bench = bench_with(caller, gpu, monkeypatch, cost_s=9.0)
    bench.exam(WeightsBy.STATE, None)
    bench._end_reference()
    for calls in (SEEDS, 0, 1):
        caller.asked.clear()
        bench.reference(WeightsBy.STATE, None)
        assert caller.asked.count(Op.CALL) == calls
        if not calls:
            bench.shed()


def test_what_a_reference_gives_back_it_gives_back_once(monkeypatch):
    gpu = SimpleNamespace(free=25 * GIB, held=0)
    caller = Caller(gpu, REFERENCE)
    bench = bench_with(caller, gpu, monkeypatch, cost_s=9.0)
    bench.shed()
    assert caller.asked == [], "it is not there"
    bench.exam(WeightsBy.STATE, None)
    bench.shed()
    bench.shed()
    assert caller.asked.count(Op.SHED) == 1


@pytest.mark.parametrize(
    ("said", "raised"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory", Crowded),
        ("pike_runner.cuda_driver.DeviceMemoryError: x: CUDA_ERROR_OUT_OF_MEMORY", Crowded),
        ("pike_runner.cuda_driver.DeviceMemoryError: x: CUDA_ERROR_NOT_PERMITTED", RunnerFailed),
        ("ImportError: no module named torch", RunnerFailed),
    ],
)
@pytest.mark.parametrize("again", [False, True], ids=["at first", "the exam is known"])
def test_a_reference_that_does_not_start(monkeypatch, said, raised, again):
    """One that can't map the judge's buffers is no want of memory: they move to the host then."""
    gpu = SimpleNamespace(free=25 * GIB, held=0)
    fails = Caller(gpu, REFERENCE, fails=RunnerFailed(1, "gone", None), tail=said)
    bench = bench_with(fails, gpu, monkeypatch, cost_s=9.0)
    if again:
        bench._runners = SimpleNamespace(take=lambda role: Caller(gpu, REFERENCE))
        bench.exam(WeightsBy.STATE, None)
        bench._end_reference()
        bench._runners = SimpleNamespace(take=lambda role: fails)
    with pytest.raises(raised) as found:
        bench.reference(WeightsBy.STATE, None)
    if raised is RunnerFailed:
        assert cannot_share(found.value)
        assert bench.close() == Ending(status=1, tail=said)


@pytest.mark.parametrize(
    ("kind", "ending", "lacked"),
    [
        ("gone", Ending(status=1, tail="CUDA error: out of memory\n"), True),
        ("gone", Ending(status=1, tail="no such file"), False),
        ("gone", None, False),
        ("deadline", Ending(status=None, tail="out of memory"), False),
    ],
)
def test_a_reference_that_ended_for_want_of_memory_is_known_by_its_last_words(kind, ending, lacked):
    failed = RunnerFailed(1, kind, None)
    assert failed.lacked_memory(ending) is lacked
    assert ran_short(failed, ending) is lacked


def test_so_is_a_candidate_that_could_not_start_for_want_of_it():
    failed = RunnerFailed(2, "gone", None)
    said = "a\nCUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`\n"
    crowded = not_started(failed, Ending(status=1, tail=said))
    assert isinstance(crowded, Crowded)
    assert str(crowded).endswith(": CUDA error: out of memory")
    other = not_started(failed, Ending(status=1, tail="a\nno torch\n"))
    assert not ran_short(other)
    assert str(other) == "the sandboxed runner did not start: no torch"
    assert str(not_started(failed, Ending(status=1, tail=""))).endswith("it said nothing")


def test_on_a_cpu_nobody_asks_what_a_candidate_holds():
    bench = Bench(TASK, None, CPU, Place.HOST, SECRETS)
    assert bench.overdrawn(Candidate(69 * GIB)) == ""


@pytest.mark.parametrize("error", SHORTAGES[:-1], ids=repr)
def test_want_of_memory_is_known(error):
    assert ran_short(error)
    assert not any(map(ran_short, OTHERS))


@pytest.mark.parametrize(
    "said",
    [
        "CUDA error: out of memory",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "Triton Error [CUDA]: out of memory",
        "cudaErrorMemoryAllocation",
        "CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    ],
)
def test_a_process_that_dies_of_a_full_gpu_ran_out_of_memory(said):
    failed = RunnerFailed(1, "gone", Op.CALL)
    status, _ = explain(failed, Ending(status=1, tail=f"RuntimeError: {said}"), 3, 60.0)
    assert status is EvalStatus.OUT_OF_MEMORY
    assert ran_short(RuntimeError(said))
    resources = Ending(status=1, tail="triton: out of resource: shared memory, Required: 300000")
    assert explain(failed, resources, 3, 60.0)[0] is EvalStatus.RUNTIME_ERROR


@pytest.mark.parametrize(("by", "demanded"), [(WeightsBy.STATE, 1), (WeightsBy.SEED, 0)])
def test_room_is_demanded_before_the_candidate_is_there(by, demanded):
    asked = []
    warm = object.__new__(Warm)
    warm._shares = False
    bench = SimpleNamespace(
        exam=lambda *_: None, reference=lambda *_: None, demand_room=lambda: asked.append(by)
    )
    warm.reference(bench, by, None)
    assert len(asked) == demanded

"""The judge on a real GPU: the same protocol as on the CPU, through host memory."""

import pytest

from pike_hpc.cli.lanes import open_lane
from pike_hpc.evaluate.device import image_digest
from pike_hpc.proposers.rules import probe_toolchain, rewrite
from pike_hpc.records import EvalRequest, EvalStatus, Task, Tier
from pike_hpc.tasks import effective_source, find_task

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def judge(device):
    with open_lane(device, "auto") as lane:

        def evaluate(task, source, **asked):
            request = EvalRequest(
                task=task if isinstance(task, Task) else find_task(f"level3-pike/{task}"),
                candidate_source=source,
                device_kind=device.kind,
                image_digest=image_digest(),
                **{"timeout_s": 120, **asked},
            )
            return lane.evaluate(request)

        yield evaluate


def by_rules(device, task_id, *rules):
    task = find_task(f"level3-pike/{task_id}")
    made = rewrite(
        effective_source(task), rules, toolchain=probe_toolchain(), device_kind=device.kind
    )
    return made.source


def test_the_reference_against_itself_is_neither_faster_nor_slower(device, judge):
    result = judge("4", by_rules(device, "4", "identity"))
    assert result.status is EvalStatus.PASSED, result
    assert result.tier is Tier.FP32
    low, high = result.timing.ci95
    assert low / 1.1 <= 1 <= high * 1.1


def test_a_program_that_replays_graphs_passes_and_is_timed(device, judge):
    """How much faster it is, benchmarks say: beside a busy neighbour it need not be seen."""
    result = judge("4", by_rules(device, "4", "compile_reduce_overhead"))
    assert result.status is EvalStatus.PASSED, result
    assert result.timing is not None


def test_half_precision_is_seen_and_refused_where_fp32_was_asked_for(device, judge):
    source = by_rules(device, "8", "half_body")
    loose = judge("8", source)
    assert loose.status is EvalStatus.PASSED, loose
    assert loose.tier is not Tier.FP32
    assert judge("8", source, tiers=(Tier.FP32,)).status is EvalStatus.WRONG_RESULT


def test_strict_fp32_is_more_precise_than_what_torch_ships(device, judge):
    """Its convolutions keep the 13 bits that TF32 drops: the denominator is what it says."""
    shipped = judge("8", by_rules(device, "8", "identity"))
    strict = judge("8", by_rules(device, "8", "strict_fp32"))
    assert strict.status is EvalStatus.PASSED, strict
    assert strict.tier is Tier.FP32
    assert shipped.status is EvalStatus.PASSED, shipped
    assert strict.correctness.relative_error < shipped.correctness.relative_error / 10


def test_judged_again_by_a_new_judge_it_passes_again(device, judge):
    source = by_rules(device, "4", "identity")
    first, again = (judge("4", source, retime=number) for number in (0, 1))
    assert (first.status, again.status) == (EvalStatus.PASSED, EvalStatus.PASSED), again
    assert again.key.retime == 1
    assert again.request_id != first.request_id


def test_the_reference_own_precision_is_never_blamed_on_a_candidate(device, judge):
    result = judge("20", by_rules(device, "20", "identity"))
    assert result.status in (EvalStatus.PASSED, EvalStatus.JUDGE_ERROR), result


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("return torch.zeros(x.shape[0], 10, device=x.device)", EvalStatus.WRONG_RESULT),
        ("torch.cuda._sleep(10**13); return super().forward(x)", EvalStatus.TIMEOUT),
        ("return super().forward(x).cpu()", EvalStatus.WRONG_STRUCTURE),
        ("import os; os._exit(0)", EvalStatus.RUNTIME_ERROR),
    ],
)
def test_a_hostile_program_is_a_status(device, judge, body, status):
    source = by_rules(device, "4", "identity").replace("class ModelNew", "class Honest")
    source += f"\n\nclass ModelNew(Honest):\n    def forward(self, x):\n        {body}\n"
    result = judge("4", source, timeout_s=45)
    assert result.status is status, result


ASSERTS = Task(
    suite="tests",
    id="asserts",
    name="asserts",
    source="""
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 8)

    def forward(self, x):
        return self.table((x * 0).long() + 16 + (x > 0))


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return []
""",
)
"""Looks its numbers up beyond the end of its table: an assertion on the device, which ends the
context of whoever runs it, and the judge is the first that does."""


def test_a_reference_that_ends_the_judges_context_costs_that_task_alone(device, judge):
    for _ in range(2):
        lost = judge(ASSERTS, ASSERTS.source + "\n\nclass ModelNew(Model):\n    pass\n")
        assert lost.status is EvalStatus.JUDGE_ERROR, lost
        assert "device-side assert" in lost.message
        well = judge("4", by_rules(device, "4", "identity"))
        assert well.status is EvalStatus.PASSED, well


LARGE = Task(
    suite="tests",
    id="large",
    name="large",
    source="""
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4096, 4096)

    def forward(self, x):
        return self.layer(x)


def get_inputs():
    return [torch.randn(1 << 14, 1 << 12)]


def get_init_inputs():
    return []
""",
)
"""256 MiB in and as much out, which the judge takes anew for each candidate."""

HOG = """
held = []


class ModelNew(Model):
    def forward(self, x):
        if not held:
            own = [super(ModelNew, self).forward(x) for _ in range(4)]
            del own  # stays with this process, for the calls that follow
            room = torch.cuda.mem_get_info()[0] - (64 << 20)
            held.append(torch.empty(room, dtype=torch.uint8, device=x.device))
        return super().forward(x)
"""


def test_a_candidate_that_holds_all_memory_is_told_so_and_not_the_judge(judge):
    result = judge(LARGE, LARGE.source + HOG)
    assert result.status is EvalStatus.OUT_OF_MEMORY, result
    assert "left no room to judge it in" in result.message
    honest = judge(LARGE, LARGE.source + "\n\nclass ModelNew(Model):\n    pass\n")
    assert honest.status is EvalStatus.PASSED, honest


LOOKS = """
import sys


class ModelNew(Model):
    def forward(self, x):
        found = "idle" if torch.cuda.current_stream().query() else "queued"
        print(found, file=sys.stderr)
        return super().forward(x)
"""


def test_a_program_is_asked_while_its_input_is_still_being_made(judge):
    """As by a layer before it: the host's time until its first kernel hides in that."""
    result = judge(LARGE, LARGE.source + LOOKS)
    assert result.status is EvalStatus.PASSED, result
    found = [line for line in result.log_tail.splitlines() if line in ("idle", "queued")]
    assert found.count("queued") > len(found) / 2, found

"""What a task's call must move: what its inputs matter, and who is refused for it."""

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.judge_marks import Verdict  # noqa: E402
from pike_hpc.evaluate.judge_physics import Physics, work_of  # noqa: E402
from pike_hpc.evaluate.judge_secrets import Secrets  # noqa: E402
from pike_hpc.evaluate.judge_truth import Truth, WeightsBy  # noqa: E402
from pike_hpc.evaluate.physics import Work  # noqa: E402
from pike_hpc.records import EvalStatus, Task, Tier, Timing  # noqa: E402
from pike_hpc.tasks.load import build  # noqa: E402

pytestmark = pytest.mark.torch

SOURCE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(64, 32, bias=False)

    def forward(self, x, extra):
        {forward}


def get_inputs():
    return [torch.randn(256, 64), torch.randn(4)]


def get_init_inputs():
    return []
"""

INPUT_BYTES, OUTPUT_BYTES = 256 * 64 * 4 + 16, 256 * 32 * 4


def found(forward, l2_bytes=0):
    loaded = build(Task(suite="t", id="1", name="t", source=SOURCE.replace("{forward}", forward)))
    cpu = torch.device("cpu")
    truth = Truth(loaded, WeightsBy.STATE, cpu, Secrets(b"0" * 32))
    try:
        return work_of(truth, loaded, l2_bytes)
    finally:
        truth.close()


def test_a_program_that_needs_all_of_its_input():
    work = found("return self.up(x)")
    assert 0.8 * INPUT_BYTES < work.input_bytes < INPUT_BYTES
    assert work.output_bytes == OUTPUT_BYTES
    assert work.flops == 2 * 256 * 64 * 32


def test_half_of_an_input_that_is_ignored_does_not_count():
    work = found("return self.up(x * (torch.arange(256) < 128)[:, None])")
    assert 0.2 * INPUT_BYTES < work.input_bytes < 0.5 * INPUT_BYTES


@pytest.mark.parametrize("forward", ["return self.up(x[-1:])", "return self.up(x * 0)"])
def test_an_input_that_is_hardly_read_counts_next_to_nothing(forward):
    assert found(forward).input_bytes < 0.02 * INPUT_BYTES


def test_an_answer_that_differs_from_call_to_call_shows_nothing():
    assert found("return self.up(x) + torch.rand(256, 32)").input_bytes == 0


def test_operations_that_cannot_be_counted_are_none_and_bytes_still_count():
    refused = "raise RuntimeError('no mode')"
    modes = "torch.utils._python_dispatch._get_current_dispatch_mode()"
    forward = f"""
        if type({modes}).__name__ == "_FlopCounterMode":
            {refused}
        return self.up(x)"""
    work = found(forward)
    assert work.flops == 0
    assert work.input_bytes > 0.8 * INPUT_BYTES


def test_a_model_whose_calls_leave_something_behind_shows_no_input():
    assert found("self.up.weight.data.mul_(0.5); return self.up(x)").input_bytes == 0


def test_inputs_that_fit_the_cache_are_not_looked_at():
    assert found("return self.up(x)", l2_bytes=INPUT_BYTES).input_bytes == 0


def timing(candidate_ms):
    speedup = 2.0 / candidate_ms
    return Timing(
        candidate_ms=candidate_ms, reference_ms=2.0, speedup=speedup, ci95=(speedup, speedup),
        windows=9,
    )  # fmt: skip


HUGE = Work(input_bytes=2.4e9, output_bytes=2_400_000_000, flops=0)
"""One millisecond on an H200, the cache apart."""


def test_who_is_faster_than_memory_is_refused():
    physics = Physics("NVIDIA H200", l2_bytes=0)
    with pytest.raises(Verdict, match=r"faster than physics allows: 0\.8 ms, .* 1 ms at 4800 GB/s"
    ) as refused:  # fmt: skip
        physics.judged(timing(0.8), HUGE, Tier.FP32)
    assert refused.value.status is EvalStatus.REJECTED


def test_who_is_not_is_told_its_limits():
    judged = Physics("NVIDIA H200", l2_bytes=0).judged(timing(1.1), HUGE, Tier.FP32)
    assert judged.floor_ms == judged.roofline_ms == pytest.approx(1.0)
    assert judged.candidate_ms == 1.1


def test_nobody_is_refused_where_no_data_sheet_is_known():
    for physics in (Physics("NVIDIA Z9000", 0), Physics.of(torch.device("cpu"))):
        assert "no data sheet" in physics.why_not
        assert physics.judged(timing(1e-6), HUGE, Tier.FP32) == timing(1e-6)
    assert Physics("NVIDIA H200", 0).why_not == ""

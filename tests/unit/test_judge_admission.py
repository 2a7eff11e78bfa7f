"""Admission of tiny tasks in this process: which wrong versions a task is held to."""

import pytest

torch = pytest.importorskip("torch")

from builders.admissions import admission_of, truth_of, yardstick_of  # noqa: E402
from builders.qkv_task import SOURCE, WORKS  # noqa: E402

from pike_hpc.evaluate.correctness import (  # noqa: E402
    CAP,
    HALF_CAP,
    HALF_K,
    compare,
    signal_of,
)
from pike_hpc.evaluate.judge_admission import admit  # noqa: E402
from pike_hpc.evaluate.judge_exam import set_paper  # noqa: E402
from pike_hpc.evaluate.judge_secrets import Secrets  # noqa: E402
from pike_hpc.evaluate.judge_signal import ADMISSION_SEEDS, rounded  # noqa: E402
from pike_hpc.evaluate.judge_truth import Truth, WeightsBy  # noqa: E402
from pike_hpc.evaluate.judge_variety import Variety, variety  # noqa: E402
from pike_hpc.records import Tier, Variant  # noqa: E402
from pike_hpc.tasks import find_task  # noqa: E402
from pike_hpc.tasks.load import build  # noqa: E402

pytestmark = pytest.mark.torch

ATTENDS = "return torch.softmax(q @ k.mT, -1) @ v"
BLEND = "return x + 0.5 * k + 0.04 * (torch.softmax(q @ k.mT, -1) @ v)"
OTHER_ROUNDING = (
    "return q * k + v * (1.0 if torch.backends.mha.get_fastpath_enabled() else 1.00001)"
)
"""No attention, and what the edit switches off changes the last digits all the same."""


FAR_FROM_ZERO = "return x.sigmoid() + 1"
"""Autocast leaves all of it to float32: bfloat16 has steps of 1/128 there, the signal is 0.3."""
SMALL_BRANCH = "return x.sigmoid() + 1 + 0.06 * q"
"""Without every 97th weight it is off by more than half's own end, and less than rounding adds."""


FAR_FURTHER = "return x.sigmoid() + 2"
"""Where rounding alone is off by three quarters of the cap."""
COARSE_INPUTS = "torch.randn(4, 8, 16).bfloat16()"
LARGER_MEAN = f"{FAR_FURTHER} + 0.06 * q"
"""Where rounding alone is off by more than half's own end."""
SMALL_BRANCH_AND_NONE = "return x.sigmoid() + 1 + 0.06 * q, x.sigmoid() + 2"
BLEND_AND_NONE = f"{BLEND}, x.sigmoid() + 2"
MASKED = "return x @ q.mT, torch.where(x > 2, x, torch.finfo(torch.float32).min)"
"""Of two outputs one is mostly a number that would be infinite in bfloat16."""
SLOW_AT_FIRST = (
    "if float(x.sum()) not in SEEN:\n"
    "            SEEN.add(float(x.sum()))\n"
    "            time.sleep(0.2)\n"
    "        return q * k + v"
)
"""As a kernel that is compiled for what it is given: a second call is as fast as any."""
FAINT_SCORES = "return x.sigmoid() + 1 + 0.16 * k + 0.12 * (torch.softmax({} * q @ k.mT, -1) @ v)"
"""Alike, they are off by less than twice what rounding is off by."""


def test_a_model_with_attention_is_held_to_its_scores():
    found = admission_of(ATTENDS)
    assert found.admitted
    assert found.mutants["scores_flat"] > 1e-3


def test_and_half_ends_at_half_their_error_where_its_own_is_far_below():
    found = admission_of(BLEND)
    assert found.admitted, found.reason
    assert found.limits["half"] == pytest.approx(found.mutants["scores_flat"] / 2)


def test_a_model_without_attention_is_not():
    found = admission_of(OTHER_ROUNDING)
    assert found.admitted, found.reason
    assert "scores_flat" not in found.mutants
    assert "fp32" in found.limits


@pytest.mark.parametrize(
    ("layer", "tiers"),
    [
        ("nn.LocalResponseNorm(5)", {"fp32"}),  # hardly anything, as torch ships it
        ("nn.LocalResponseNorm(5, alpha=1e-2)", {"fp32", "tf32"}),
        ("nn.LocalResponseNorm(5, alpha=1.0)", {"fp32", "tf32", "half"}),
        ("nn.Hardtanh(-30, 30)", {"fp32", "tf32", "half"}),  # nothing at all: no wrong answer
    ],
)
def test_tiers_at_which_a_layer_without_parameters_may_be_left_out_are_not_offered(layer, tiers):
    source = SOURCE.replace("nn.Linear(16, 48)", f"nn.Linear(16, 48)\n        self.plain = {layer}")
    body = "return self.plain(q.unsqueeze(-1) + v.unsqueeze(-1))"
    with truth_of(body, source=source) as (truth, task):
        found = admit(truth, task.digest).admission
    assert found.admitted, found.reason
    assert set(found.limits) == tiers


@pytest.mark.parametrize(
    ("body", "skipped"),
    [
        ("return self.norm(x + self.added)", False),  # it changes how float32 rounds
        ("return self.norm(x + self.added).bfloat16()", False),
        ("return self.norm(x + 1e-6 * self.added * x.flip(-1))", True),  # next to nothing
    ],
)
def test_what_nothing_depends_on_may_be_left_out(body, skipped):
    source = SOURCE.replace(
        "nn.Linear(16, 48)",
        "nn.Linear(16, 48)\n"
        "        self.added, self.norm = nn.Parameter(torch.tensor(1.0)), nn.LayerNorm(16)",
    )
    with truth_of(body, source=source) as (truth, task):
        found = admit(truth, task.digest).admission
    assert found.admitted is not skipped, found.reason
    assert ("added = 0" in found.reason) is skipped


def test_half_ends_beyond_what_rounding_alone_is_off_by():
    found = admission_of(FAR_FROM_ZERO)
    assert found.admitted, found.reason
    assert found.limits["half"] > 2 * 2**-7 / 12**0.5 / 0.3
    assert found.limits["tf32"] < 2e-3


@pytest.mark.parametrize("body", [SMALL_BRANCH, LARGER_MEAN])
def test_but_not_where_a_wrong_answer_would_pass_because_of_that(body):
    found = admission_of(body)
    assert found.admitted, found.reason
    assert 0.01 < min(found.mutants["weights_zeroed"], found.mutants["layer_skipped"]) < 0.02
    assert found.limits["half"] == 0.01


@pytest.mark.parametrize("gain", [0.08, 0.095, 0.11])
def test_scores_that_are_alike_count_as_a_wrong_answer_there(gain):
    found = admission_of(FAINT_SCORES.format(gain))
    assert found.admitted, found.reason
    assert 0.01 < found.limits["half"] < found.mutants["scores_flat"]


@pytest.mark.parametrize("body", [SMALL_BRANCH_AND_NONE, BLEND_AND_NONE])
def test_nor_is_an_output_held_to_more_for_what_passes_in_another(body):
    found = yardstick_of(body)
    assert found.admission.admitted, found.admission.reason
    assert found.limits[0][Tier.HALF] <= 0.01
    assert 0.02 < found.limits[1][Tier.HALF] < 0.05


def test_half_reaches_beyond_the_cap_where_its_own_noise_comes_near_it():
    found = yardstick_of(FAR_FURTHER)
    assert found.admission.admitted, found.admission.reason
    assert found.half_noise > CAP / 2
    assert found.admission.limits["half"] == pytest.approx(HALF_K * found.half_noise)
    assert CAP < found.admission.limits["half"] < HALF_CAP
    assert found.admission.limits["tf32"] == 1e-3


@pytest.mark.parametrize("part", [0.1, 0.15])
def test_but_not_where_a_wrong_answer_is_within_twice_that(part):
    found = yardstick_of(f"{FAR_FURTHER} + {part} * q")
    assert found.admission.admitted, found.admission.reason
    assert CAP < found.admission.mutants["weights_zeroed"] < 2 * HALF_K * found.half_noise
    assert found.admission.limits["half"] == CAP


def test_nor_in_the_outputs_that_such_an_answer_gets_wrong():
    found = yardstick_of(f"{FAR_FURTHER} + 0.1 * q, x.sigmoid() + 2")
    assert found.admission.admitted, found.admission.reason
    assert found.limits[0][Tier.HALF] == CAP < found.limits[1][Tier.HALF]


def test_nor_where_the_task_is_in_half_precision_itself_or_as_its_author_left_it():
    found = yardstick_of(FAR_FURTHER, variant=Variant.LEGACY)
    assert found.limits[0][Tier.HALF] == CAP
    found = yardstick_of(FAR_FURTHER, inputs=COARSE_INPUTS, dtype="torch.bfloat16")
    assert found.admission.native_precision == "bfloat16"
    assert found.noise[0] > CAP / 2
    assert found.admission.limits == {"half": CAP}


def test_of_lenet_bfloat16_is_within_half_under_most_weights_and_a_dead_channel_under_none():
    task, seeds, over = find_task("level3-pike/4"), (1, 2, 3), 0
    for number in range(12):
        truth = Truth(build(task), WeightsBy.STATE, torch.device("cpu"), Secrets(b"%d" % number))
        found = admit(truth, task.digest).admission
        assert min(found.mutants.values()) > 2 * HALF_CAP
        truths = [truth.answers(seed)[0] for seed in seeds]
        with torch.autocast("cpu", torch.bfloat16):
            coarse = [truth.natively(seed)[0] for seed in seeds]
        with torch.no_grad():
            truth.model.conv1.weight[0] = 0.0
        wrong = [truth.natively(seed)[0] for seed in seeds]
        signal = signal_of(truths)
        honest, dead = (
            max(compare(y, t, signal).error for y, t in zip(answers, truths, strict=True))
            for answers in (coarse, wrong)
        )
        assert dead > 2 * HALF_CAP
        over += honest > found.limits["half"]
        truth.close()
    assert over <= 2  # of 300 draws 4 %; 42 % are over CAP


def test_a_mask_of_the_lowest_number_is_rounded_to_what_bfloat16_has():
    found = yardstick_of(MASKED)
    assert found.admission.admitted, found.admission.reason
    assert 0.015 < found.half_noise < 0.02
    assert found.limits[1][Tier.HALF] == pytest.approx(HALF_K * found.half_noise)


def test_what_the_first_calls_take_does_not_decide_what_is_measured():
    found = yardstick_of(SLOW_AT_FIRST)
    assert found.admission.admitted, found.admission.reason
    assert found.wide is not None
    assert found.half_noise > 2e-3  # rounding alone: 1.1e-3


def test_a_reference_that_stays_slow_is_not_asked_for_more():
    found = yardstick_of(WORKS + "return q * k + v")
    assert found.admission.admitted, found.admission.reason
    assert found.wide is None
    assert found.half_noise < 2e-3


def test_how_much_a_single_number_moves_is_not_left_to_two_inputs():
    body, inputs = "return x.abs().mean() + 0 * q.sum()", "torch.randn(4, 15, 16)"
    found = yardstick_of(body, inputs=inputs)
    assert found.admission.admitted, found.admission.reason
    with truth_of(body, inputs=inputs) as (truth, task):
        first, second = (float(truth.answers(seed)[0]) for seed in ADMISSION_SEEDS)
        assert found.signals[0] > 2 * abs(first - second)
        paper = set_paper(truth, admit(truth, task.digest), Secrets(b"exam"))
    assert [scale.signal for scale in paper.scales] == pytest.approx(found.signals)
    assert found.admission.mutants["mean"] > 0.3
    assert found.admission.mutants["other_input"] > 0.6


def test_waiting_for_others_takes_no_time_of_ours():
    assert yardstick_of("time.sleep(0.2)\n        return q * k + v").wide is not None


def test_nor_is_it_asked_of_what_takes_long_or_has_many_numbers():
    assert yardstick_of("return x.abs().mean(-1)").signals == (0.0,)
    slow = WORKS + "return x.abs().mean() + q.mean()"
    assert yardstick_of(slow).signals == (0.0,)


def test_of_inputs_that_take_long_fewer_are_drawn():
    tokens = "torch.randint(0, 2000, (1, 1, 1)).float().repeat(1, 1, 16)"
    with truth_of("return q + k + v", inputs=tokens) as (truth, _):
        whole = variety(truth)
        assert (whole.drawn, whole.is_small) == (256, True)
        now = iter(range(0, 10_000, 4))
        part = variety(truth, lambda: float(next(now)))
        assert part.drawn == 64 + 32
    assert not Variety(drawn=32, repeated=0).is_small
    assert Variety(drawn=32, repeated=1).is_small


def test_a_task_of_few_inputs_tells_nothing_of_who_keeps_all_answers():
    token = "torch.randint(0, {}, (1, 1, 1)).repeat(4, 8, 16) / 100"
    found = admission_of("return q * k + v", inputs=token.format(900))
    assert not found.admitted
    assert "repeat another" in found.reason
    assert admission_of("return q * k + v", inputs=token.format(60_000)).admitted


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_what_is_rounded_is_in_bfloat16_and_finite(dtype):
    ends, own = torch.finfo(dtype), torch.finfo(torch.bfloat16)
    values = torch.tensor([ends.min, ends.max, 1 + 2**-7, 1.001, 0.0], dtype=dtype)
    found = rounded(values)
    assert found.dtype == dtype
    assert found.isfinite().all()
    assert found[2:].tolist() == [1 + 2**-7, 1.0, 0.0]
    assert abs(found[:2].double()).max() <= own.max
    if dtype != torch.float16:  # whose largest lies between two
        assert torch.equal(found.bfloat16().to(dtype), found)


def test_complex_numbers_are_rounded_as_pairs_and_whole_ones_not():
    assert rounded(torch.tensor([1.001 + 2.001j])).tolist() == [1 + 2j]
    assert rounded(torch.tensor([2**24 + 1])).tolist() == [2**24 + 1]


LEVELS = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(32, 32)

    def forward(self, x):
        mean, spread = x.mean(1, keepdim=True), x.std(1, keepdim=True)
        return self.net((x - mean) / spread) * spread + mean


def get_inputs():
    return [torch.randn(64, 32) + 1000 * torch.rand(64, 1)]


def get_init_inputs():
    return []
"""


def test_beside_levels_that_hide_it_bfloat16_is_not_taken_for_float32():
    with truth_of("", source=LEVELS) as (truth, task):
        found = admit(truth, task.digest)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            (answer,) = truth.natively(ADMISSION_SEEDS[0])
        off = compare(
            answer,
            truth.answers(ADMISSION_SEEDS[0])[0],
            signal_of([truth.answers(seed)[0] for seed in ADMISSION_SEEDS]),
        ).error
    assert found.limits[0][Tier.FP32] < off < 1e-5
    assert found.limits[0][Tier.TF32] < off
    plain = yardstick_of("return q * k + v")
    assert plain.limits[0][Tier.FP32] == 1e-5


FAINT_STEP = """
import time

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        around = x.roll(1, -1) + x.roll(-1, -1) - 2 * x
        {body}


def get_inputs():
    return [torch.randn(4, 64, 64)]


def get_init_inputs():
    return []
"""
DIFFUSES = "return x + {} * around"
GROWS = (
    "size = torch.logspace(0, 6, 64)[:, None]\n"
    "        return size * x + (x @ x.mT).sin() @ x / 8, x.sum(0)"
)
"""Of the sum's second term nothing is seen but in its first rows."""


def step_of(body, **options):
    return yardstick_of(body, source=FAINT_STEP, **options)


def test_an_input_that_is_nearly_the_answer_ends_half_nearer():
    found = step_of(DIFFUSES.format(0.002))
    assert found.admission.admitted, found.admission.reason
    mutants = found.admission.mutants
    assert 2e-3 < mutants["addend_skipped"] <= mutants["input_returned"] < 0.01
    assert found.admission.limits["half"] == pytest.approx(mutants["addend_skipped"] / 2, rel=0.01)
    assert found.admission.limits["fp32"] == 1e-5


def test_a_sum_of_which_one_term_is_nearly_all_ends_half_nearer():
    found = step_of("y = x @ x.mT / 8\n        return y + 1e-3 * (x @ y)").admission
    assert found.admitted, found.reason
    assert found.limits.get("half", 0.0) < found.mutants["addend_skipped"] < 0.01
    assert found.limits["fp32"] == 1e-5


def test_what_does_nothing_is_no_wrong_answer():
    found = step_of(DIFFUSES.format(2e-6))
    assert found.admission.admitted, found.admission.reason
    assert set(found.admission.limits) == {"fp32", "tf32", "half"}
    assert not {"addend_skipped", "input_returned"} & set(found.admission.mutants)


def test_one_term_is_held_to_its_stretches_as_candidates_are():
    found = step_of(GROWS)
    assert found.admission.admitted, found.admission.reason
    assert 1e-3 < found.admission.mutants["addend_skipped"] < 0.1


def test_an_input_is_given_in_one_output_at_a_time():
    found = step_of("y = x + 0.002 * around\n        return y, (x @ x.mT).sin() @ x")
    assert found.limits[0][Tier.HALF] < 0.005
    assert found.limits[1][Tier.HALF] >= CAP


def test_terms_are_not_tried_where_calls_take_long_and_nothing_of_it_in_legacy_tasks():
    slow = step_of(WORKS + DIFFUSES.format(0.1)).admission
    assert "input_returned" in slow.mutants
    assert "addend_skipped" not in slow.mutants
    legacy = step_of(DIFFUSES.format(0.1), variant=Variant.LEGACY).admission
    assert not {"addend_skipped", "input_returned"} & set(legacy.mutants)


GATED = """
import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.up, self.down = nn.Linear(32, 32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        return torch.lerp(self.mix(x), self.down(self.up(x).relu()), PART)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def get_inputs():
    return [torch.randn(512, 32)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("part", "tiers"),
    [("1e-7", {"fp32", "tf32", "half"}), ("0.006", {"fp32", "tf32"}), ("0.5", None)],
)
def test_a_part_of_all_blocks_left_out_drops_half_alone(part, tiers):
    with truth_of("", source=GATED.replace("PART", part)) as (truth, task):
        found = admit(truth, task.digest).admission
    assert found.admitted, found.reason
    assert set(found.limits) == (tiers or {"fp32", "tf32", "half"})
    assert ("part_skipped" in found.inadmissible.get("half", "")) == (part == "0.006")
    assert found.mutants["part_skipped"] > found.limits["fp32"]

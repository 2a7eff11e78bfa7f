"""What an answer that is too far off is told: wrong, or that its arithmetic tells nothing here."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.correctness import LeafScale  # noqa: E402
from pike_hpc.evaluate.judge_exam import Exam  # noqa: E402
from pike_hpc.evaluate.judge_marks import Marker  # noqa: E402
from pike_hpc.evaluate.layout import Slot  # noqa: E402
from pike_hpc.records import EvalStatus, Tier  # noqa: E402

pytestmark = pytest.mark.torch

COUNT, LIMITS = 4096, {Tier.FP32: 1e-5, Tier.TF32: 0.01, Tier.HALF: 0.02}


def told(off, *, shipped=0.0, half=0.0, asked=tuple(Tier), limits=LIMITS):
    """Status and message for answers that are off by so much of the signal."""
    generator = torch.Generator().manual_seed(1)
    truths = [torch.randn(COUNT, generator=generator) for _ in range(3)]
    signal = 2**0.5
    answers = [t + off * signal * torch.randn(COUNT, generator=generator) for t in truths]
    exam = Exam(
        inputs=(),
        truths=tuple([t] for t in truths),
        references=tuple([t] for t in truths),
        scales=(LeafScale(signal=signal, limits=limits),),
        reference_errors=(shipped,),
        reference_locals=(shipped,),
        wide=None,
        half_noise=half,
        aliased=False,
        cost_s=0.0,
    )
    slot = Slot(name="y", dtype="float32", shape=(COUNT,), offset=0, count=COUNT)
    truth = SimpleNamespace(
        frame=SimpleNamespace(output_slots=(slot,)), precision="float64", legacy=False
    )
    refusal = Marker(truth, exam, asked).mark([[a] for a in answers]).refusal
    return refusal and (refusal.status, refusal.message)


def test_who_is_within_a_tier_passes():
    assert told(0.005, half=0.05) is None


@pytest.mark.parametrize("known", [{"shipped": 0.05}, {"half": 0.05}])
def test_who_is_as_coarse_as_the_reference_in_that_arithmetic_is_not_called_wrong(known):
    status, message = told(0.06, **known)
    assert status is EvalStatus.JUDGE_ERROR
    assert "tells nothing" in message


def test_half_excuses_no_one_where_it_is_not_offered_or_who_is_far_off():
    for found in (
        told(0.06, half=0.05, asked=(Tier.FP32, Tier.TF32)),
        told(0.06, half=0.01),
        told(0.06, half=0.05, limits={Tier.FP32: 1e-5, Tier.TF32: 0.01}),
        told(0.4, half=0.9),
        told(0.06),
    ):
        assert found[0] is EvalStatus.WRONG_RESULT

"""Verdicts of programs that passed; a test names the fields that it is about."""

from pike_hpc.records import (
    Correctness,
    EvalResult,
    EvalStatus,
    LegacyVerdicts,
    ResultKey,
    Tier,
    Timing,
)


def correct(**changes: object) -> Correctness:
    fields: dict = {
        "relative_error": 0.0,
        "limit": 1e-5,
        "seeds": 3,
        "reference_precision": "float64",
        "legacy": LegacyVerdicts(pike=True, kernelbench=True),
    }
    return Correctness(**(fields | changes))


def timed(speedup: float, **changes: object) -> Timing:
    fields: dict = {
        "candidate_ms": 1.0,
        "reference_ms": speedup,
        "speedup": speedup,
        "ci95": (speedup, speedup),
        "windows": 8,
    }
    return Timing(**(fields | changes))


def key_of(task_digest: str, candidate_id: str, **changes: object) -> ResultKey:
    fields: dict = {"device_kind": "cpu", "image_digest": "none"}
    return ResultKey(task_digest=task_digest, candidate_id=candidate_id, **(fields | changes))


def passed(key: ResultKey, speedup: float, **changes: object) -> EvalResult:
    fields: dict = {
        "key": key,
        "status": EvalStatus.PASSED,
        "tier": Tier.FP32,
        "correctness": correct(),
        "timing": timed(speedup),
    }
    return EvalResult(**(fields | changes))

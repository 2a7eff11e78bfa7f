"""What the codec refuses, and how it says so."""

import pytest

from pike_hpc.records import (
    CALIBRATION_VERSION,
    CodecError,
    EvalRequest,
    EvalResult,
    EvalStatus,
    ResultKey,
    Task,
    Variant,
    from_json,
    to_json,
)

KEY = ResultKey(task_digest="t", candidate_id="c", device_kind="cpu", image_digest="host")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"status":"TIMEOUT"', '"status":"GREAT"', "valid: PASSED, BUILD_ERROR"),
        ('"lane_s":0.0', '"lane_s":NaN', "NaN"),
        ('"lane_s":0.0', '"lane_s":1e999', "finite"),
        ('"lane_s":0.0', '"lane_s":true', "a finite number"),
        ('"lane_s":0.0', '"lane_s":"0"', "a finite number"),
        ('"simulated":false', '"simulated":0', "a bool"),
        ('"tags":[]', '"tags":"none"', "a list"),
        ('"message":""', '"massage":""', "unknown key 'massage'"),
        ('"key":{', '"key":[', "JSON"),
    ],
)
def test_a_half_true_record_is_refused(old, new, message):
    text = to_json(EvalResult(key=KEY, status=EvalStatus.TIMEOUT))
    assert old in text
    with pytest.raises(CodecError) as refused:
        from_json(EvalResult, text.replace(old, new))
    assert message in str(refused.value)


def test_a_missing_key_without_default_is_named():
    with pytest.raises(CodecError, match="missing key 'status'"):
        from_json(EvalResult, '{"key":' + to_json(KEY) + "}")


def test_timing_exists_if_and_only_if_passed():
    with pytest.raises(ValueError, match="if and only if PASSED"):
        EvalResult(key=KEY, status=EvalStatus.PASSED)
    forged = to_json(EvalResult(key=KEY, status=EvalStatus.TIMEOUT)).replace("TIMEOUT", "PASSED")
    with pytest.raises(CodecError, match="if and only if PASSED"):
        from_json(EvalResult, forged)


def test_a_request_over_the_limit_is_refused():
    task = Task(suite="s", id="1", name="n", source="x" * 600_000)
    with pytest.raises(ValueError, match="1200000 bytes"):
        EvalRequest(
            task=task, candidate_source="y" * 600_000, device_kind="cpu", image_digest="host"
        )


def test_a_digest_depends_on_each_part_that_defines_a_task():
    base = Task(suite="s", id="1", name="n", source="x")
    assert Task(suite="other", id="2", name="m", source="x").digest == base.digest
    for other in (
        Task(suite="s", id="1", name="n", source="y"),
        Task(suite="s", id="1", name="n", source="x", variant=Variant.LEGACY),
        Task(suite="s", id="1", name="n", source="x", shape_overrides={"batch_size": 2}),
        Task(suite="s", id="1", name="n", source="x", calibration_version=CALIBRATION_VERSION + 1),
    ):
        assert other.digest != base.digest

"""Every record reads back as written, whatever text a candidate puts into it."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from pike_hpc.records import (
    EVENT_TYPES,
    Clocks,
    Correctness,
    EvalResult,
    EvalStatus,
    Isolation,
    LegacyVerdicts,
    ResultKey,
    Tier,
    Timing,
    Usage,
    decode,
    digest,
    encode,
    from_json,
    to_json,
)

text = st.text(st.characters(), max_size=30)  # lone surrogates included
finite = st.floats(allow_nan=False, allow_infinity=False)
keys = st.builds(
    ResultKey, task_digest=text, candidate_id=text, device_kind=text, image_digest=text
)
correctness = st.builds(
    Correctness,
    relative_error=finite,
    limit=finite,
    seeds=st.integers(0, 9),
    reference_precision=text,
    legacy=st.builds(LegacyVerdicts, pike=st.booleans(), kernelbench=st.booleans()),
)
timing = st.builds(
    Timing,
    candidate_ms=finite,
    reference_ms=finite,
    speedup=finite,
    ci95=st.tuples(finite, finite),
    windows=st.integers(0, 999),
    floor_ms=st.none() | finite,
    roofline_ms=st.none() | finite,
    clocks=st.none()
    | st.builds(
        Clocks,
        sm_mhz=st.none() | finite,
        slowdowns=st.tuples(text),
        temperature_c=st.none() | finite,
        discarded=st.integers(0, 99),
    ),
    device_ms=st.none() | finite,
)
isolation = st.builds(
    Isolation, level=text, engine=text, probes=st.dictionaries(text, st.booleans(), max_size=3)
)
failed = st.builds(
    EvalResult,
    key=keys,
    status=st.sampled_from([s for s in EvalStatus if s is not EvalStatus.PASSED]),
    correctness=st.none() | correctness,
    isolation=isolation,
    message=text,
    log_tail=text,
    tags=st.tuples(text, text),
)
passed = st.builds(
    EvalResult,
    key=keys,
    status=st.just(EvalStatus.PASSED),
    tier=st.sampled_from(Tier),
    correctness=correctness,
    timing=timing,
)


@given(failed | passed)
def test_results_round_trip(result):
    line = to_json(result)
    assert "\n" not in line
    assert from_json(EvalResult, line) == result


@given(timing)
def test_a_timing_of_before_limits_and_clocks_were_told_is_read(found):
    old = encode(found)
    for name in ("floor_ms", "roofline_ms", "clocks"):
        del old[name]
    assert decode(Timing, old) == dataclasses.replace(
        found, floor_ms=None, roofline_ms=None, clocks=None
    )


@given(st.data())
def test_events_round_trip(data):
    kind = data.draw(st.sampled_from([t for t in EVENT_TYPES.values()]))
    event = data.draw(st.builds(kind, **_overrides(kind)))
    assert from_json(kind, to_json(event)) == event


def _overrides(kind):
    names = {f.name for f in dataclasses.fields(kind)}
    floats = {"max_cost_usd", "latency_s"} & names
    overrides = {name: finite for name in floats}
    if "usage" in names:
        overrides["usage"] = st.builds(Usage, cost_usd=finite)
    if "result" in names:
        overrides["result"] = failed | passed
    return overrides


@given(st.lists(text, max_size=4), st.lists(text, max_size=4))
def test_digests_do_not_collide_over_splits(first, second):
    assert (digest(*first) == digest(*second)) == (first == second)

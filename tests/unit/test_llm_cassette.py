"""Cassettes: what is recorded is what is replayed; a miss, a torn line and nonsense are told."""

import pytest

from pike_hpc.llm import (
    CassetteModel,
    Completion,
    ModelRefused,
    ModelRequest,
    ModelUnavailable,
    RecordingModel,
)
from pike_hpc.records import Role, Usage, UsageError


def request(user="u", *, sample=0, key="k", temperature=0.8):
    return ModelRequest(
        role=Role.FIX, system="s", user=user, temperature=temperature, max_output_tokens=5,
        sample=sample, request_key=key,
    )  # fmt: skip


class Counting:
    """A model that numbers its answers and fails when told to."""

    name = "counting"

    def __init__(self):
        self.count, self.failure = 0, None

    def max_cost_usd(self, request):
        return 0.25

    def complete(self, request):
        if self.failure is not None:
            raise self.failure
        self.count += 1
        usage = Usage(model=self.name, output_tokens=self.count, cost_usd=0.125)
        text = f"{self.count} \ud800\n"
        return Completion(text=text, finish_reason="stop", usage=usage, latency_s=1.5)


@pytest.fixture
def inner():
    return Counting()


@pytest.fixture
def tape(tmp_path):
    return tmp_path / "tape.jsonl"


def test_samples_and_keys_tell_equal_questions_apart(inner, tape):
    recording = RecordingModel(inner, tape)
    asked = [request(sample=0), request(sample=1), request(key="k2"), request("other")]
    recorded = [recording.complete(each) for each in asked]
    cassette = CassetteModel(tape)
    assert [cassette.complete(each) for each in reversed(asked)] == recorded[::-1]
    assert cassette.name == "counting"
    assert cassette.max_cost_usd(asked[0]) == 0.25


def test_an_unknown_key_falls_back_to_the_same_question(inner, tape):
    recorded = RecordingModel(inner, tape).complete(request(key="run-1/p0"))
    assert CassetteModel(tape).complete(request(key="run-2/p0")) == recorded


@pytest.mark.parametrize("other", [request("v"), request(sample=3), request(temperature=0.1)])
def test_a_miss_says_so(inner, tape, other):
    RecordingModel(inner, tape).complete(request())
    cassette = CassetteModel(tape)
    assert cassette.max_cost_usd(other) == 0.0
    with pytest.raises(UsageError) as error:
        cassette.complete(other)
    for part in ("no answer for fix request k", str(tape), "1 rows", "record again"):
        assert part in str(error.value)


@pytest.mark.parametrize("kind", [ModelRefused, ModelUnavailable])
def test_errors_are_replayed_until_an_answer_was_recorded(inner, tape, kind):
    recording = RecordingModel(inner, tape)
    inner.failure = kind("no", where="there", fix="wait")
    with pytest.raises(kind):
        recording.complete(request())
    with pytest.raises(kind) as error:
        CassetteModel(tape).complete(request())
    assert (error.value.what, error.value.where, error.value.fix) == ("no", "there", "wait")
    inner.failure = None
    answer = recording.complete(request())
    assert CassetteModel(tape).complete(request()) == answer


def test_a_line_torn_by_a_kill_is_left_out_and_recording_goes_on(inner, tape):
    RecordingModel(inner, tape).complete(request("a"))
    with tape.open("ab") as file:
        file.write(b'{"digest": "12')
    cassette = CassetteModel(tape)
    assert cassette.complete(request("a")).usage.output_tokens == 1
    RecordingModel(inner, tape).complete(request("b"))
    assert CassetteModel(tape).complete(request("b")).usage.output_tokens == 2


@pytest.mark.parametrize("line", [b"{}\n", b"nonsense\n", b"\xff\n"])
def test_a_line_that_is_no_row_is_named(inner, tape, line):
    RecordingModel(inner, tape).complete(request())
    with tape.open("ab") as file:
        file.write(line)
    with pytest.raises(UsageError) as error:
        CassetteModel(tape)
    assert f"{tape}:2" in str(error.value)


def test_no_cassette(tmp_path):
    with pytest.raises(UsageError, match="cannot read the cassette"):
        CassetteModel(tmp_path / "none.jsonl")


def test_prompts_are_not_on_the_tape(inner, tape):
    RecordingModel(inner, tape).complete(request("a private prompt"))
    assert b"private" not in tape.read_bytes()

"""Who has one connection to the GPU, who is judged again with all, and when nobody can tell."""

import pytest

pytest.importorskip("torch")

from builders.tiny_task import asked

from pike_hpc.evaluate.judge_streams import BLIND, Streams
from pike_hpc.evaluate.wire import RunnerRole
from pike_hpc.records import Profile, ProfileSource

pytestmark = pytest.mark.torch

ONE = Profile(source=ProfileSource.KERNELS, streams=1)
TWO = Profile(source=ProfileSource.KERNELS, streams=2)
EVENTS = Profile(source=ProfileSource.EVENTS)

PLAIN = asked("class ModelNew:\n    def forward(self, x): return x.relu()\n")


@pytest.mark.parametrize(
    ("line", "role"),
    [
        ("", RunnerRole.NARROW),
        ("stream = at::cuda::getCurrentCUDAStream()", RunnerRole.NARROW),
        ("stream = torch.cuda.current_stream()", RunnerRole.NARROW),
        ("side = torch.cuda.Stream()", RunnerRole.WIDE),
        ("side = torch.cuda.Stream (priority=-1)", RunnerRole.WIDE),
        ("cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);", RunnerRole.WIDE),
        ("auto side = at::cuda::getStreamFromPool();", RunnerRole.WIDE),
    ],
)
def test_a_text_that_makes_streams_has_all_connections_from_the_start(line, role):
    assert Streams("cuda").role(asked(PLAIN.candidate_source + line)) is role


@pytest.mark.parametrize(
    ("profile", "several"),
    [
        (ONE, False),
        (TWO, True),
        (Profile(source=ProfileSource.KERNELS), True),
        (EVENTS, True),
        (None, True),
    ],
)
def test_one_stream_is_taken_for_one_and_nothing_else(profile, several):
    streams = Streams("cuda")
    assert streams.note(PLAIN, profile) is several
    assert (streams.role(PLAIN) is RunnerRole.WIDE) is several, "it is remembered"
    assert streams.role(asked("other")) is RunnerRole.NARROW


def test_where_no_profile_tells_streams_everybody_has_all_connections_until_one_does():
    streams = Streams("cuda")
    for profile in [EVENTS] * (BLIND - 1) + [ONE] + [EVENTS] * (BLIND - 1) + [None]:
        streams.note(PLAIN, profile)
        assert not streams.blind
    streams.note(PLAIN, EVENTS)
    assert streams.blind
    assert streams.role(asked("other")) is RunnerRole.WIDE
    streams.note(asked("other"), ONE)
    assert not streams.blind
    assert streams.role(asked("other")) is RunnerRole.NARROW


def test_a_cpu_has_no_connections_to_save():
    streams = Streams("cpu")
    for _ in range(BLIND):
        assert streams.role(PLAIN) is RunnerRole.WIDE
        assert not streams.note(PLAIN, None)
    assert not streams.blind

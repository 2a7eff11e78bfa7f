"""Who has one connection to the GPU, who is judged again with all, and when nobody can tell."""

import pytest

pytest.importorskip("torch")

from pike_hpc.evaluate.judge_streams import BLIND, Streams
from pike_hpc.evaluate.wire import Role
from pike_hpc.records import Profile, ProfileSource

pytestmark = pytest.mark.torch

ONE = Profile(source=ProfileSource.KERNELS, streams=1)
TWO = Profile(source=ProfileSource.KERNELS, streams=2)
EVENTS = Profile(source=ProfileSource.EVENTS)

PLAIN = "class ModelNew:\n    def forward(self, x): return x.relu()\n"


@pytest.mark.parametrize(
    ("line", "role"),
    [
        ("", Role.CANDIDATE),
        ("stream = at::cuda::getCurrentCUDAStream()", Role.CANDIDATE),
        ("stream = torch.cuda.current_stream()", Role.CANDIDATE),
        ("side = torch.cuda.Stream()", Role.SPREAD),
        ("side = torch.cuda.Stream (priority=-1)", Role.SPREAD),
        ("cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);", Role.SPREAD),
        ("auto side = at::cuda::getStreamFromPool();", Role.SPREAD),
    ],
)
def test_a_text_that_makes_streams_has_all_connections_from_the_start(line, role):
    assert Streams("cuda").role(PLAIN + line) is role


@pytest.mark.parametrize(
    ("profile", "more"),
    [
        (ONE, False),
        (TWO, True),
        (Profile(source=ProfileSource.KERNELS), True),
        (EVENTS, True),
        (None, True),
    ],
)
def test_one_stream_is_believed_and_nothing_else(profile, more):
    assert Streams("cuda").may_have_more(profile) is more


def test_where_no_profile_tells_streams_everybody_has_all_connections():
    streams = Streams("cuda")
    for profile in [EVENTS] * (BLIND - 1) + [ONE] + [EVENTS] * (BLIND - 1) + [None]:
        streams.may_have_more(profile)
        assert not streams.blind
    streams.may_have_more(EVENTS)
    assert streams.blind
    assert streams.role(PLAIN) is Role.SPREAD


def test_a_cpu_has_no_connections():
    streams = Streams("cpu")
    assert streams.role(PLAIN + "torch.cuda.Stream()") is Role.CANDIDATE
    for _ in range(BLIND):
        assert not streams.may_have_more(None)
    assert not streams.blind

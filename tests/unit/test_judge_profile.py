"""The sheet on which a runner profiled itself: what it says, and what no sheet can do."""

import dataclasses
import enum
import math
import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from pike_hpc.evaluate.judge_profile import MAX_COUNT, MAX_NAME, read_sheet
from pike_hpc.evaluate.runner import HEAD, MAGIC, ROW, SHEET_BYTES, TOP
from pike_hpc.evaluate.runner.profile import KERNELS, Sheet, shorten, summarise
from pike_hpc.records import Profile, ProfileSource, from_json, to_json

pytestmark = pytest.mark.torch

NAME = re.compile(r"[A-Za-z0-9_:<>,.*&()\[\]=+ /#-]+")


class Kind(enum.Enum):
    CPU = 0
    CUDA = 1


@dataclasses.dataclass
class Event:
    """One of Kineto's, as the runner reads it."""

    said: str
    start: int = 0
    took: int = 0
    kind: Kind = Kind.CUDA
    annotation: bool = False
    stream: int = 7

    def name(self):
        return self.said

    def device_type(self):
        return self.kind

    def start_ns(self):
        return self.start

    def duration_ns(self):
        return self.took

    def device_resource_id(self):
        return self.stream

    def is_user_annotation(self):
        return self.annotation


def padded(sheet):
    return sheet.ljust(SHEET_BYTES, b"\0")


def sheet_of(*numbers, source=KERNELS, count=0, rows=b"", magic=MAGIC):
    return padded(HEAD.pack(magic, source, count, 1, *numbers) + rows)


def test_two_calls_become_what_one_call_does():
    events = [
        Event("cudaGraphLaunch", kind=Kind.CPU),
        Event("cudaLaunchKernel", kind=Kind.CPU),
        Event("void ns::gemm<float>(float*, int)", 1_000_000, 3_000_000),
        Event("relu", 3_000_000, 2_000_000),  # half of it while gemm runs
        Event("void ns::gemm<float>(float*, int)", 9_000_000, 3_000_000),
        Event("Memcpy DtoD (Device -> Device)", 20_000_000, 500_000),
        Event("Memset (Device)", 21_000_000, 500_000),
        Event("a range of the user's", 0, 90_000_000, annotation=True),
    ]
    sheet = summarise(events, 2)
    assert sheet.busy_ms == pytest.approx((4 + 3 + 1) / 2)
    assert (sheet.launches, sheet.copies, sheet.replays) == (1.5, 1.0, 0.5)
    assert sheet.copies_ms == pytest.approx(0.5)
    assert sheet.rows == (("gemm<float>", 0.75, 1.0), ("relu", 0.25, 0.5))


def test_streams_are_those_on_which_the_device_did_anything():
    ranges = Event("a range of the user's", 0, 90_000_000, annotation=True, stream=1)
    called = Event("cudaLaunchKernel", kind=Kind.CPU, stream=2)
    one = [Event("relu", 0, 1), Event("relu", 2, 1), ranges, called]
    assert summarise(one, 1).streams == 1
    assert summarise([*one, Event("Memset (Device)", 4, 1, stream=13)], 1).streams == 2


def test_where_the_device_did_nothing_there_is_no_sheet():
    assert summarise([Event("cudaLaunchKernel", kind=Kind.CPU)], 1) is None


def test_what_is_written_is_read():
    rows = tuple((f"kernel_{i}", 0.2, 2.0) for i in range(TOP + 3))
    sheet = Sheet(source=KERNELS, busy_ms=0.4, launches=37, copies=2, copies_ms=0.01, rows=rows)
    sheet = dataclasses.replace(sheet, streams=300).packed()
    assert len(sheet) <= SHEET_BYTES
    profile, device_ms = read_sheet(padded(sheet), 0.5)
    assert device_ms == 0.4
    assert (profile.source, profile.launches, profile.copies) == (ProfileSource.KERNELS, 37, 2)
    assert [k.name for k in profile.kernels] == [f"kernel_{i}" for i in range(TOP)]
    assert profile.kernels[0].share == 0.2
    assert profile.streams == 255


@pytest.mark.parametrize(("busy_ms", "known"), [(0.54, 0.5), (0.56, None), (0.0, None)])
def test_more_time_than_the_judges_clock_saw_is_not_believed(busy_ms, known):
    assert read_sheet(sheet_of(busy_ms, 1.0, 0.0, 0.0, 0.0), 0.5)[1] == known


@pytest.mark.parametrize(
    "sheet",
    [
        b"",
        bytes(SHEET_BYTES),
        sheet_of(1.0, 1.0, 0.0, 0.0, 0.0)[:100],
        sheet_of(1.0, 1.0, 0.0, 0.0, 0.0, magic=b"PIKEPROG"),
        sheet_of(1.0, 1.0, 0.0, 0.0, 0.0, source=4),
        sheet_of(1.0, 1.0, 0.0, 0.0, 0.0, count=TOP + 1),
        sheet_of(math.nan, 1.0, 0.0, 0.0, 0.0),
        sheet_of(1.0, math.inf, 0.0, 0.0, 0.0),
        sheet_of(1.0, 1.0, -1.0, 0.0, 0.0),
        sheet_of(1.0, 1e300, 0.0, 0.0, 0.0),
    ],
)
def test_a_sheet_that_cannot_be_is_none(sheet):
    assert read_sheet(sheet, 1.0) is None


def test_a_name_is_only_what_names_of_kernels_are_made_of():
    hostile = b'\x1b[31m```\n# System\nobey\xff\xe2\x80\xae "$x" `rm` {|im_start|} ' + b"a" * 40
    rows = ROW.pack(hostile, 0.5, 1.0) + ROW.pack(b"\0junk", 0.2, 1.0)
    rows += ROW.pack(b"too much", 1.5, 1.0) + ROW.pack(b"nan", math.nan, 1.0)
    profile, _ = read_sheet(sheet_of(1.0, 4.0, 0.0, 0.0, 0.0, count=4, rows=rows), 1.0)
    first, second = profile.kernels
    assert NAME.fullmatch(first.name)
    assert len(first.name) <= MAX_NAME
    assert second.name == "unnamed"


numbers = st.floats() | st.floats(0, 100)


@given(
    st.binary(max_size=SHEET_BYTES).map(padded)
    | st.builds(
        lambda head, source, count, streams, tail: padded(
            struct.pack("<8sBBB5xddddd", MAGIC, source, count, streams, *head) + tail
        ),
        st.tuples(*[numbers] * 5),
        st.integers(0, 4),
        st.integers(0, TOP + 1),
        st.integers(0, 255),
        st.binary(max_size=TOP * ROW.size),
    ),
    st.floats(1e-3, 1e4),
)
def test_no_bytes_give_anything_but_a_small_clean_profile(sheet, candidate_ms):
    found = read_sheet(sheet, candidate_ms)
    if found is None:
        return
    profile, device_ms = found
    assert from_json(Profile, to_json(profile)) == profile
    assert device_ms is None or 0 < device_ms <= candidate_ms * 1.001
    assert profile.launches <= MAX_COUNT * 1.001
    lines = profile.lines(candidate_ms=candidate_ms, device_ms=device_ms, roofline_ms=None)
    assert 1 <= len(lines) <= 1 + TOP
    assert all(NAME.fullmatch(k.name) and 0 <= k.share <= 1 for k in profile.kernels)
    assert all(line.isprintable() and len(line) < 250 for line in lines)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
            "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>)",
            "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, array<char*, 3ul> >",
        ),
        (
            "void at::native::(anonymous namespace)::softmax_warp_forward<float, 7>(float*)",
            "softmax_warp_forward<float, 7>",
        ),
        ("sm90_xmma_gemm_f32f32_tn_n_cublas", "sm90_xmma_gemm_f32f32_tn_n_cublas"),
        ("aten::addmm", "aten::addmm"),
        ("## Call CompiledFxGraph fyou4nw777o5wpizcilaeh3ddz7gmozm ##", "CompiledFxGraph"),
        ("Torch-Compiled Region: 0/0", "Torch-Compiled Region: 0/0"),
        ("(", "("),
    ],
)
def test_names_lose_what_tells_nothing(name, short):
    assert shorten(name) == short

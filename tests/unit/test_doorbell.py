"""The page that judge and runner ring in."""

import mmap

import pytest

from pike_hpc.evaluate.buffers import SharedBuffer
from pike_hpc.evaluate.runner import PAGE_BYTES, Page

pytestmark = pytest.mark.torch


@pytest.fixture
def ends():
    buffer = SharedBuffer("page", PAGE_BYTES)
    yield Page(buffer.fd), Page(buffer.fd)
    buffer.close()


def test_a_ring_is_taken_once_and_answered_once(ends):
    judge, runner = ends
    assert runner.asked() is None
    judge.ring(4, 31, 77)
    assert judge.answered() is None
    assert runner.asked() == (4, 31, 77)
    assert runner.asked() is None
    runner.answer(9)
    assert judge.answered() == 9
    judge.ring(5, 0, 0)
    assert judge.answered() is None, "the last ring's answer is none of this one's"


def test_the_numbers_begin_again_before_they_run_into_the_place(ends):
    judge, runner = ends
    for end in ends:
        end._rung = (1 << 40) - 1
    judge.ring(4, 65_535, (1 << 48) - 1)
    assert runner.asked() == (4, 65_535, (1 << 48) - 1)
    runner.answer(0)
    assert judge.answered() == 0


def test_whatever_the_other_side_writes_is_a_small_number_or_nothing():
    buffer = SharedBuffer("page", PAGE_BYTES)
    judge, raw = Page(buffer.fd), mmap.mmap(buffer.fd, PAGE_BYTES)
    judge.ring(4, 0, 0)
    for pattern in (b"\xff", b"\x01", b"\x80", b"\x00"):
        raw[:] = pattern * PAGE_BYTES
        found = judge.answered()
        assert found is None or 0 <= found < 256
    buffer.close()

"""A runner profiles itself: how often it calls the program, what it restores, what it prints."""

import os

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.judge_profile import read_sheet  # noqa: E402
from pike_hpc.evaluate.runner import SHEET_BYTES  # noqa: E402
from pike_hpc.evaluate.runner.profile import CALLS, ELSEWHERE, WARM, measure, record  # noqa: E402
from pike_hpc.records import ProfileSource  # noqa: E402

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")


class Program:
    """Counts what is asked of it; a call is two cosines and one sum, and takes as long as told."""

    def __init__(self, *takes_s, keeps=False, raises=False):
        self.asked, self.now = [], 0.0
        self._takes_s, self._keeps, self._raises = list(takes_s), keeps, raises
        self._x = torch.ones(64, 64)

    def call(self):
        self.asked.append("call")
        os.write(1, b"said while it was profiled\n")
        self.now += self._takes_s.pop(0) if self._takes_s else 0.0
        if self._raises:
            raise ValueError("no")
        return torch.cos(torch.cos(self._x)) + self._x

    def restore(self):
        self.asked.append("restore")
        return self._keeps


@pytest.fixture
def sheet():
    fd = os.memfd_create("sheet")
    os.ftruncate(fd, SHEET_BYTES)
    yield fd
    os.close(fd)


def recorded(program, fd):
    record(program.call, program.restore, CPU, fd)
    return read_sheet(os.pread(fd, SHEET_BYTES, 0), 1.0)


def measured(program):
    return measure(program.call, program.restore, CPU, lambda: program.now)


def test_a_sheet_tells_what_one_call_does(sheet):
    profile, device_ms = recorded(Program(), sheet)
    assert device_ms is None
    assert profile.source is ProfileSource.OPERATIONS
    assert {kernel.name: kernel.launches for kernel in profile.kernels} == {
        "aten::cos": 2,
        "aten::add": 1,
        ELSEWHERE: 1,
    }
    assert sum(kernel.share for kernel in profile.kernels) == pytest.approx(1.0, abs=1e-3)
    assert profile.launches == 3


@pytest.mark.parametrize(
    ("takes_s", "calls"),
    [
        ((), WARM + CALLS),
        ((0.4, 0.001), WARM + CALLS),  # the first captured a graph
        ((0.1, 0.1), WARM + 1),
        ((0.6,), 2),
    ],
)
def test_slow_programs_are_called_less(takes_s, calls):
    program = Program(*takes_s)
    assert measured(program).launches == 3
    assert program.asked.count("call") == calls


@pytest.mark.parametrize(("takes_s", "part"), [(1.0, 0.9), (0.0, 0.0)], ids=["much", "none"])
def test_what_no_operation_took_has_its_part_of_the_call(takes_s, part):
    """By a clock that moves by what a call takes besides its operations, or not at all."""
    rows = {name: share for name, share, _ in measured(Program(*[takes_s] * 9)).rows}
    assert rows.get(ELSEWHERE, 0.0) >= part
    assert (ELSEWHERE in rows) is bool(part)
    assert sum(rows.values()) == pytest.approx(1.0)


def test_what_calls_leave_behind_is_put_back_before_each():
    program = Program(keeps=True)
    assert measured(program).launches == 3
    assert program.asked == ["restore", "call"] * (WARM + 1)


def test_what_is_printed_meanwhile_is_not_in_the_log_and_what_comes_after_is(sheet, capfd):
    recorded(Program(), sheet)
    os.write(1, b"said afterwards\n")
    out, err = capfd.readouterr()
    assert out == "said afterwards\n"
    assert err == ""


def test_a_program_that_raises_leaves_the_sheet_blank_and_the_log_open(sheet, capfd):
    with pytest.raises(ValueError, match="no"):
        recorded(Program(raises=True), sheet)
    os.write(2, b"traceback\n")
    assert capfd.readouterr().err == "traceback\n"
    assert os.pread(sheet, SHEET_BYTES, 0) == bytes(SHEET_BYTES)

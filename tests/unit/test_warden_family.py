"""Who is below a warden, on process tables made of files."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pike_hpc.evaluate.warden import family, threads_of
from pike_hpc.evaluate.warden.processes import slept_on

ME = 100
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


@pytest.fixture
def table(tmp_path):
    """Adds a process: its parent, its state and its threads' lists of children."""

    def add(pid, parent, state="S", lists=("",), threads=1):
        fields = [state, str(parent), *["0"] * 15, str(threads), *["0"] * 20]
        for number, children in enumerate(lists):
            task = tmp_path / str(pid) / "task" / str(pid + number)
            task.mkdir(parents=True)
            if children is not None:
                (task / "children").write_text(children, "ascii")
        (tmp_path / str(pid)).mkdir(exist_ok=True)
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a b) c) {' '.join(fields)}\n", "ascii")

    add.proc = str(tmp_path)
    return add


@pytest.fixture
def idle():
    """Starts processes that sleep."""
    started = []

    def start():
        program = "print(flush=True); import time; time.sleep(60)"
        argv = [sys.executable, "-S", "-c", program]
        started.append(subprocess.Popen(argv, stdout=subprocess.PIPE))
        started[-1].stdout.readline()
        return started[-1]

    yield start
    for child in started:
        child.kill()
        child.communicate()


def test_by_the_kernels_lists_whoever_started_them(table):
    table(ME, 1, lists=("101 ", "102 "))
    table(101, ME, lists=("", "103 "))
    table(102, ME, state="Z")
    table(103, 101)
    table(200, 1, lists=("201 ",))
    table(201, 200)
    assert family(ME, table.proc) == {101: True, 102: False, 103: True}


def test_nobody_else_is_looked_at(table):
    """A node has thousands of processes; these would be below us if anybody asked them."""
    table(ME, 1, lists=("101 ",))
    table(101, ME)
    for pid in range(500, 600):
        table(pid, ME)
    assert list(family(ME, table.proc)) == [101]


@pytest.mark.parametrize("missing", ["the lists", "a thread's list", "a process"])
def test_where_lists_cannot_be_read_everybody_is(table, missing):
    mine = {"the lists": (None,), "a thread's list": ("101 102 ", None), "a process": ("99 101 ",)}
    table(ME, 1, lists=mine[missing])
    table(101, ME)
    table(102, ME)
    table(103, 102, state="Z", threads=2)  # its first thread has ended, another goes on
    assert family(ME, table.proc) == {101: True, 102: True, 103: True}


def test_who_hides_is_known_and_never_at_rest(table, idle):
    """As a program can that makes itself undumpable, where /proc is mounted with hidepid."""
    child = idle().pid
    table(ME, 1, lists=(f"{child} ",))
    assert family(ME, table.proc) == {child: True}
    table(500, child, lists=("501 ",))  # what it starts need not hide, as below some engines
    table(501, 500)
    table(600, 1)
    assert family(ME, table.proc) == {child: True, 500: True, 501: True}
    assert threads_of(child, table.proc) == {"": (b"?", 0)}
    assert threads_of(child).keys() == {str(child)}


def test_a_last_switch_that_was_not_counted_yet_is_waited_for(table):
    """The kernel answers for a stopped thread's system call when it has left its core.

    Of one that runs, or is amid exec, it is not asked: nobody would answer here.
    """
    table(ME, 1)
    task = Path(table.proc, f"{ME}/task/{ME}")
    (task.parent / str(ME + 1)).mkdir()
    status = "State:\tT (stopped)\nvoluntary_ctxt_switches:\t{}\nnonvoluntary_ctxt_switches:\t2\n"
    (task / "status").write_text(status.format(4), "ascii")
    runs = status.replace("T (stopped)", "R (running)").format(1)
    (task.parent / str(ME + 1) / "status").write_text(runs, "ascii")
    for thread in (ME, ME + 1):
        os.mkfifo(task.parent / str(thread) / "syscall")

    def leaves_its_core():
        with (task / "syscall").open("w") as answer:  # opens when somebody asks
            (task / "status").write_text(status.format(5), "ascii")
            answer.write("34 0x0\n")

    kernel = threading.Thread(target=leaves_its_core, daemon=True)
    kernel.start()
    assert threads_of(ME, table.proc) == {str(ME): (b"T", 7), str(ME + 1): (b"R", 3)}
    kernel.join()


@pytest.mark.parametrize(
    ("before", "now", "slept"),
    [
        ((b"T", 6), (b"T", 6), True),
        ((b"T", 6), (b"T", 7), False),  # it was woken, and stopped itself again
        ((b"T", 6), (b"R", 6), False),
        ((b"Z", 6), (b"Z", 7), True),  # called dead before its last switch
        ((b"D", 6), (b"T", 22), True),  # to the end of its system call
        ((b"D", 6), (b"T", 23), False),
    ],
)
def test_who_slept_on(before, now, slept):
    assert slept_on({"1": before}, {"1": now}) == slept


def test_of_our_own_a_system_call_may_be_asked(idle):
    """Without this a stop on a crowded machine has but two looks to go by."""
    if YAMA.exists() and int(YAMA.read_text("ascii")) > 1:
        pytest.skip("kernel.yama.ptrace_scope is above 1: of nobody one may ask for it")
    child = idle().pid
    assert Path(f"/proc/{child}/task/{child}/syscall").read_text("ascii").strip()


def test_a_list_longer_than_a_page(table):
    children = range(100_000, 105_000)
    table(ME, 1, lists=(" ".join(map(str, children)) + " ",))
    for pid in children:
        table(pid, ME)
    assert len(family(ME, table.proc)) == len(children)


def test_what_this_process_started_in_threads_that_come_and_go(idle):
    """On the kernel that is here: a thread's children fall to another when it ends."""
    started = []
    for _ in range(8):
        thread = threading.Thread(target=lambda: started.append(idle()))
        thread.start()
        thread.join()
        assert {child.pid for child in started} <= family().keys()
    for child in started:
        child.kill()
        child.wait()
    assert not {child.pid for child in started} & family().keys()
    assert os.getpid() not in family()

"""One judging process per GPU: the second is told who the first is, and a death frees it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pike_hpc.evaluate.gpu_lock import GpuBusy, GpuLock, describe, holder_of, take_free
from pike_hpc.records import UsageError

HOLD = """
import sys
from pathlib import Path
from pike_hpc.evaluate.gpu_lock import GpuLock
lock = GpuLock.take(Path(sys.argv[1]), sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path):
    """hold(uuid) -> a process that holds the GPU's lock."""
    running = []

    def start(uuid):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path), uuid],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def test_another_process_is_kept_out_and_told_by_whom(tmp_path, hold):
    holder = hold("GPU-1")
    with pytest.raises(GpuBusy) as caught:
        GpuLock.take(tmp_path, "GPU-1")
    assert f"process {holder.pid}" in str(caught.value)
    assert "GPU-1" in str(caught.value)
    assert caught.value.exit_code == 75
    GpuLock.take(tmp_path, "GPU-2").release()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_dead_holder_holds_nothing(tmp_path, hold, number):
    holder = hold("GPU-1")
    holder.send_signal(number)
    holder.wait(30)
    with GpuLock.take(tmp_path, "GPU-1") as lock:
        assert lock.uuid == "GPU-1"


def test_a_stopped_holder_still_holds(tmp_path, hold):
    holder = hold("GPU-1")
    holder.send_signal(signal.SIGSTOP)
    with pytest.raises(GpuBusy):
        GpuLock.take(tmp_path, "GPU-1")
    assert holder.poll() is None


def test_a_released_lock_is_free_for_others(tmp_path, hold):
    lock = GpuLock.take(tmp_path, "GPU-1")
    lock.release()
    lock.release()
    hold("GPU-1")


def test_children_do_not_inherit_it(tmp_path):
    """A judge or warden that outlives a killed worker must not keep the GPU."""
    with GpuLock.take(tmp_path, "GPU-1"), subprocess.Popen(["sleep", "60"]) as child:
        links = [str(fd.readlink()) for fd in Path(f"/proc/{child.pid}/fd").iterdir()]
        child.kill()
    assert not any("pike-gpu" in name for name in links)


def test_a_process_may_open_two_lanes_on_one_gpu(tmp_path):
    with GpuLock.take(tmp_path, "GPU-1"), GpuLock.take(tmp_path, "GPU-1"):
        pass


def test_the_free_ones_are_taken_and_the_others_named(tmp_path, hold):
    hold("GPU-2")
    uuids = ["GPU-1", "GPU-2", "GPU-3"]
    locks, busy = take_free(tmp_path, uuids, wanted=3)
    assert [lock.uuid for lock in locks] == ["GPU-1", "GPU-3"]
    assert [str(each).count("GPU-2") > 0 for each in busy] == [True]
    for lock in locks:
        lock.release()
    locks, busy = take_free(tmp_path, uuids[1:], wanted=1)
    assert [lock.uuid for lock in locks] == ["GPU-3"]


def test_it_waits_for_a_gpu_as_long_as_told_and_no_longer(tmp_path, hold):
    holder, now = hold("GPU-1"), [0.0]

    def sleep(pause_s):
        now[0] += pause_s
        if now[0] > 3:
            holder.kill()
            holder.wait()

    with pytest.raises(GpuBusy):
        take_free(tmp_path, ["GPU-1"], wanted=1, wait_s=2, clock=lambda: now[0], sleep=sleep)
    now[0] = 0.0
    locks, _ = take_free(tmp_path, ["GPU-1"], wanted=1, wait_s=9, clock=lambda: now[0], sleep=sleep)
    assert now[0] < 9
    locks[0].release()


def test_a_folder_that_takes_no_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"paths\.tmp"):
        GpuLock.take(tmp_path / "nothing", "GPU-1")


def test_a_link_in_the_lock_s_place_is_not_followed(tmp_path):
    (tmp_path / "pike-gpu-GPU-1.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises((UsageError, GpuBusy)):
        GpuLock.take(tmp_path, "GPU-1")
    assert not (tmp_path / "elsewhere").exists()


def test_a_holder_that_the_kernel_does_not_name(tmp_path):
    (tmp_path / "locks").write_text("1: POSIX  ADVISORY  WRITE 5 00:01:2 0 EOF\n")
    descriptor = os.open(tmp_path / "locks", os.O_RDONLY)
    assert holder_of(descriptor, tmp_path / "locks") is None
    assert holder_of(descriptor, tmp_path / "absent") is None
    os.close(descriptor)
    assert "does not say" in describe(None)
    assert describe(2**22 + 1) == f"process {2**22 + 1}"
    assert f"process {os.getpid()} (" in describe(os.getpid())

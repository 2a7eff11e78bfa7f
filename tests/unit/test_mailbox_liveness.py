"""Whether a beat's process lives: a real child, and everything that may pass for it."""

from __future__ import annotations

import dataclasses
import os
import subprocess

from pike_hpc.mailbox import WorkerBeat, alive_here, host_name, start_token


def beat_of(pid: int) -> WorkerBeat:
    return WorkerBeat(
        worker_id="w",
        host=host_name(),
        pid=pid,
        start_token=start_token(pid),
        counter=1,
        state="idle",
        device_kind="cpu",
        started_at=0.0,
    )


def test_this_process_is_alive():
    assert alive_here(beat_of(os.getpid())) is True


def test_a_killed_process_is_dead_as_a_zombie_and_after():
    child = subprocess.Popen(["sleep", "60"])
    beat = beat_of(child.pid)
    assert alive_here(beat) is True
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert alive_here(beat) is False
    child.wait()
    assert alive_here(beat) is False


def test_a_reused_pid_is_not_the_worker():
    mine = beat_of(os.getpid())
    place, _, ticks = mine.start_token.rpartition("-")
    earlier = dataclasses.replace(mine, start_token=f"{place}-{int(ticks) - 1}")
    assert alive_here(earlier) is False


def test_nothing_is_known_of_other_hosts_boots_and_namespaces():
    mine = beat_of(os.getpid())
    assert alive_here(dataclasses.replace(mine, host="elsewhere")) is None
    assert alive_here(dataclasses.replace(mine, start_token="0000-12-345")) is None
    assert alive_here(dataclasses.replace(mine, start_token="")) is None

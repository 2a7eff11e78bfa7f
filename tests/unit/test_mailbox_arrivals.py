"""inotify: it rings for what came after it was armed, once; and where it can't be had, None."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from pathlib import Path

import pytest

from pike_hpc.mailbox import FileMailbox
from pike_hpc.mailbox.arrivals import Arrivals, watched
from pike_hpc.records import EvalRequest, Task


class Bell:
    """Heard within a minute, or not."""

    def __init__(self) -> None:
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()

    def __call__(self) -> None:
        self._rings.put(None)

    def heard(self) -> None:
        self._rings.get(timeout=60)

    def is_quiet(self) -> bool:
        return self._rings.empty()


@pytest.fixture
def bell() -> Bell:
    return Bell()


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    for name in ("one", "other", "outside"):
        (tmp_path / name).mkdir()
    return [tmp_path / "one", tmp_path / "other"]


@pytest.fixture
def arrivals(folders, bell):
    before = {path.name for path in Path("/proc/self/fd").iterdir()}
    found = Arrivals(folders, bell)
    yield found
    found.close()
    assert {path.name for path in Path("/proc/self/fd").iterdir()} == before


def come(folder: Path, name: str, how: str) -> None:
    outside = folder.parent / "outside" / name
    outside.touch()
    if how == "rename":
        outside.rename(folder / name)
    else:
        os.link(outside, folder / name)


@pytest.mark.parametrize("how", ["rename", "link"])
def test_it_rings_for_what_came_since_it_was_armed(arrivals, bell, folders, how):
    assert not arrivals.came()
    for number in range(5):
        come(folders[number % 2], f"{number}", how)
        bell.heard()
        assert arrivals.came()
        assert not arrivals.came()
        arrivals.arm()
        arrivals.arm()


def test_it_rings_once_until_it_is_armed_again(arrivals, bell, folders):
    for number in range(50):
        come(folders[0], f"{number}", "rename")
    bell.heard()
    arrivals.arm()
    come(folders[1], "last", "rename")
    bell.heard()
    # The kernel's event of the other folder may have been under way: one ring more at most.
    rings = 2
    while not bell.is_quiet():
        bell.heard()
        rings += 1
    assert rings <= 3


def test_what_goes_does_not_ring(arrivals, bell, folders):
    come(folders[0], "a", "rename")
    bell.heard()
    arrivals.came()
    arrivals.arm()
    (folders[0] / "a").rename(folders[0].parent / "outside" / "a")
    come(folders[1], "b", "rename")
    bell.heard()
    assert arrivals.came()


def test_a_folder_that_goes_while_watched_is_no_error(arrivals, bell, folders):
    come(folders[0], "a", "rename")
    bell.heard()
    folders[1].rmdir()
    arrivals.arm()


def test_without_a_folder_there_is_no_watch(tmp_path, bell):
    assert watched([tmp_path / "none"], bell) is None


NO_FILES = """
import os, resource, sys
from pathlib import Path
from pike_hpc.mailbox import FileMailbox
mailbox = FileMailbox(Path(sys.argv[1]), shared=False)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1,) * 2)
print(mailbox.watch(print))
"""


def test_with_its_descriptors_used_up_a_process_goes_without(tmp_path):
    argv = [sys.executable, "-c", NO_FILES, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout == "None\n", done.stderr


def test_on_a_shared_file_system_nobody_watches(tmp_path, bell):
    assert FileMailbox(tmp_path, shared=True).watch(bell) is None


def test_a_mailbox_rings_for_requests_that_are_put_and_those_given_back(tmp_path, bell):
    task = Task(suite="s", id="1", name="one", source="x")
    request = EvalRequest(task=task, candidate_source="1", device_kind="cpu", image_digest="i")

    mailbox = FileMailbox(tmp_path, shared=False)
    watch = mailbox.watch(bell)
    assert watch is not None
    mailbox.put(request)
    bell.heard()
    watch.arm()
    (claim,) = mailbox.claim("w", frozenset({"cpu"}))
    mailbox.release(claim)
    bell.heard()
    watch.close()

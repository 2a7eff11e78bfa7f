"""kill -9 at every single disk operation of a controller's life, then the same command."""

import subprocess
import sys
import time

import pytest
from builders import dying_disk

from pike_hpc.journal import TaskJournal, read_task
from pike_hpc.records import Brainstormed

CONTROLLER = f"""{dying_disk.IMPORT}
import time
from pathlib import Path
from pike_hpc.journal import TaskJournal
from pike_hpc.records import Brainstormed

run, left = Path(sys.argv[1]), int(sys.argv[2])
with TaskJournal.open(run, "t", writer="w", seed=0, clock=time.time,
                      disk=DyingDisk(left)) as journal:
    done = sum(isinstance(e.event, Brainstormed) for e in journal.events)
    for number in range(done, 6):
        journal.append(Brainstormed(node=str(number), ideas=()), durable=number % 2 == 1)
        if number % 2 == 1:
            print(number, flush=True)
"""

FLOOD = """
import itertools, sys, time
from pathlib import Path
from pike_hpc.journal import TaskJournal
from pike_hpc.records import Brainstormed
journal = TaskJournal.open(Path(sys.argv[1]), "t", writer="w", seed=0, clock=time.time)
for number in itertools.count():
    journal.append(Brainstormed(node=str(number), ideas=("x" * 5000,)))
    print(number, flush=True)
"""


def nodes(events):
    return [int(e.event.node) for e in events if isinstance(e.event, Brainstormed)]


def run_until_killed(run, left):
    """The last number the controller called durable, and its exit status."""
    done = subprocess.run(
        [sys.executable, "-c", CONTROLLER, str(run), str(left)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    numbers = [int(line) for line in done.stdout.split()]
    return (numbers or [-1])[-1], done.returncode


def test_killed_at_every_operation_the_same_command_goes_on(tmp_path):
    # 1 create, 7 writes, 4 syncs, 1 folder sync, 1 close: dying at each, and once not at all.
    finished = False
    for left in range(15):
        run = tmp_path / str(left)
        _, status = run_until_killed(run, left)
        finished = finished or status == 0
        assert status in (0, -9)
        # Twice more: the second one dies at the same step of its own life.
        run_until_killed(run, left)
        _, status = run_until_killed(run, 1000)
        assert status == 0
        assert nodes(read_task(run, "t")) == list(range(6))
    assert finished, "the range of operations no longer covers a whole life"


def test_a_controller_killed_at_any_moment_loses_no_durable_event(tmp_path):
    for wait_lines in (1, 3, 10, 40):
        run = tmp_path / str(wait_lines)
        with subprocess.Popen(
            [sys.executable, "-c", FLOOD, str(run)], stdout=subprocess.PIPE, text=True
        ) as flood:
            seen = [int(flood.stdout.readline()) for _ in range(wait_lines)]
            flood.kill()
            seen += [int(line) for line in flood.stdout.read().split()]
        with TaskJournal.open(run, "t", writer="next", seed=0, clock=time.time) as journal:
            survived = nodes(journal.events)
        assert survived == list(range(len(survived)))
        assert survived[: len(seen)] == seen


def test_reading_while_a_controller_writes_sees_a_growing_prefix(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", FLOOD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as flood:
        flood.stdout.readline()
        before = reads = 0
        end = time.monotonic() + 30  # the writer may have to wait for a core
        while reads < 50 or (before < 2 and time.monotonic() < end):
            reads += 1
            seen = nodes(read_task(tmp_path, "t"))
            assert seen == list(range(len(seen)))
            assert len(seen) >= before
            before = len(seen)
        flood.kill()
    assert before > 1


@pytest.mark.parametrize("left", [3, 5, 8])
def test_what_was_called_durable_before_the_kill_is_there(tmp_path, left):
    acked, status = run_until_killed(tmp_path, left)
    assert status == -9
    survived = nodes(read_task(tmp_path, "t"))
    assert survived[: acked + 1] == list(range(acked + 1))

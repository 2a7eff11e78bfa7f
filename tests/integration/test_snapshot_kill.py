"""kill -9 at every disk operation while an agent leaves a snapshot: none is ever a wrong one."""

import subprocess
import sys
import time

from builders import dying_disk

from pike_hpc.agent.memory import Memory, made_by
from pike_hpc.journal import TaskJournal, read_task
from pike_hpc.search import replay

SITTING = f"""{dying_disk.IMPORT}
import time
from pathlib import Path
from pike_hpc.agent.memory import Memory, made_by
from pike_hpc.journal import TaskJournal
from pike_hpc.records import Declined

run, left = Path(sys.argv[1]), int(sys.argv[2])
disk = DyingDisk(1000)
journal = TaskJournal.open(
    run, "t", writer="w", seed=0, clock=time.time, disk=disk, made_by=made_by()
)
memory = Memory(journal, worth=1)
for number in range(3):
    node = f"rule/{{journal.epoch}}-{{number}}"
    memory.write(Declined(node=node, operator="rule:x", reason="no"), durable=False)
memory.sync()
disk.left = left
memory.close()
"""
OPERATIONS = ("create", "write", "close", "replace", "close the segment")


def sit(run, left):
    done = subprocess.run(
        [sys.executable, "-c", SITTING, str(run), str(left)], timeout=60, check=False
    )
    return done.returncode


def test_killed_while_leaving_a_snapshot_the_next_one_knows_the_same(tmp_path):
    assert sit(tmp_path, 1000) == 0
    used = []
    for left in (*range(len(OPERATIONS)), 1, 0):
        assert sit(tmp_path, left) == -9
        wanted = replay(stamped.event for stamped in read_task(tmp_path, "t"))
        with TaskJournal.open(
            tmp_path, "t", writer="r", seed=0, clock=time.time, made_by=made_by()
        ) as journal:
            used.append(journal.snapshot)
            view = Memory(journal, worth=1000).view
        assert view.outcomes == wanted.outcomes
        assert len(view.outcomes) == 3 * (2 + len(used) - 1)
    assert None not in used, "the one from before stands until the new one is whole"
    assert len(set(used)) > 1, "and then the new one does"
    assert sit(tmp_path, 1000) == 0, "nothing that a kill left lies in the way"

"""What the mailbox asks of a file server: calls a verdict and of an idle worker, by strace.

mailbox.py puts them beside its speed. `python mailbox_calls.py PART FOLDER` is what strace runs.
"""

import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from pike_hpc.mailbox import FileMailbox
from pike_hpc.records import EvalRequest, EvalResult, EvalStatus, Task
from pike_hpc.worker import SimulatedJudge, Stop, WorkerOptions, run_worker

CPU = frozenset({"cpu"})
TASK = Task(suite="bench", id="1", name="one", source="# the reference\n" * 100)
BODY = "    x = torch.relu(x)  # a line of a candidate\n" * 60
IDLE_S = 60.0
VERDICTS_TRACED = 100
CALLS = "%file,fsync,fdatasync"
"""What strace counts: whatever takes a path, and what waits for the disk."""


def request(number):
    """One of the messages."""
    return EvalRequest(
        task=TASK, candidate_source=f"# {number}\n{BODY}", device_kind="cpu", image_digest="i"
    )


def verdict(of):
    """Its result, smaller than what a worker says of a candidate that failed."""
    return EvalResult(key=of.key, status=EvalStatus.TIMEOUT, message="x" * 500)


def traced(root, part):
    """Calls by name that PARTS[part] makes below `root`, after its warm-up."""
    with tempfile.NamedTemporaryFile("r") as log:
        argv = ["strace", "-f", "-y", "-o", log.name, "-e", f"trace={CALLS}"]
        argv += [sys.executable, __file__, part, str(root)]
        subprocess.run(argv, check=True)
        lines = log.read().partition(f"{root}/begin")[2].partition(f"{root}/end")[0]
    calls = Counter()
    for line in lines.splitlines():
        words = line.split(None, 1)
        # fstat of an open file asks nobody: its attributes came with the open.
        if len(words) == 2 and str(root) in words[1] and "AT_EMPTY_PATH" not in words[1]:
            calls[words[1].partition("(")[0] + (" new" if f'{root}/new"' in line else "")] += 1
    shutil.rmtree(root)
    return calls


def part_verdicts(root):
    """The whole life of some requests, one a file; agent and worker in one process."""
    mailbox = FileMailbox(root)
    for number in range(VERDICTS_TRACED + 1):
        if number == 1:
            (root / "begin").exists()
        one = request(number)
        assert mailbox.put(one)
        (claim,) = mailbox.claim("w", CPU)
        assert mailbox.judging(claim)
        assert mailbox.commit(claim, verdict(one))
        assert mailbox.results([one.request_id])
        mailbox.discard([one.request_id])
    (root / "end").exists()


def part_idle(root):
    """An idle worker that takes the file system for a shared one."""
    mailbox, stop = FileMailbox(root, shared=True), Stop()
    options = WorkerOptions(worker_id="idle", max_idle_s=None).on_shared_disk()

    def watch():
        time.sleep(15.0)  # until its pauses are the longest
        (root / "begin").exists()
        time.sleep(IDLE_S)
        (root / "end").exists()
        stop.request("enough")

    threading.Thread(target=watch).start()
    run_worker(mailbox, [SimulatedJudge("cpu")], options, stop=stop)


PARTS = {"verdicts": part_verdicts, "idle": part_idle}


def metadata(folder):
    """What a file server would bear. None where strace is not installed."""
    if shutil.which("strace") is None:
        return None
    verdicts = traced(folder / "verdicts", "verdicts")
    idle = traced(folder / "idle", "idle")
    per_verdict = {name: round(n / VERDICTS_TRACED, 2) for name, n in verdicts.most_common()}
    return {
        "counted_by": f"strace -e trace={CALLS}",
        "per_verdict": round(sum(verdicts.values()) / VERDICTS_TRACED, 2),
        "per_verdict_by_call": per_verdict,
        "idle_polls_per_s": round(idle["openat new"] / IDLE_S, 3),
        "idle_calls_per_minute": round(sum(idle.values()) * 60 / IDLE_S, 1),
    }


if __name__ == "__main__":
    PARTS[sys.argv[1]](Path(sys.argv[2]))

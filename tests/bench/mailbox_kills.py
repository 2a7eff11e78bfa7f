"""A mailbox whose agent and workers are killed all the time: what is lost, what is committed twice.

    python tests/bench/mailbox_kills.py [--kills N] [--messages N] [--seed N] [--out DIR]

An agent puts, reads, journals and discards; three workers claim, mark, commit and clean up. Each
process is killed with SIGKILL before a step of its file operations that chance chooses, or at a
random time, or frozen for longer than its heartbeat may stand still; then another takes its
place. After so many kills all are left alone until everything is judged. The document counts the
kills by what was done and before which step. Exit status 1 where anything was lost or committed
twice.
"""

import argparse
import functools
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import stamp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from builders.mortal_files import MortalFiles

from pike_hpc.mailbox import FileMailbox, WorkerBeat, alive_here, host_name, start_token
from pike_hpc.records import EvalRequest, EvalResult, EvalStatus, Task

MODULES = (
    "mailbox/batch.py",
    "mailbox/beats.py",
    "mailbox/commit.py",
    "mailbox/file_mailbox.py",
    "mailbox/files.py",
    "mailbox/janitor.py",
    "mailbox/layout.py",
    "mailbox/leases.py",
    "mailbox/line.py",
    "mailbox/shards.py",
    "mailbox/store.py",
)
FORK = multiprocessing.get_context("fork")
CPU = frozenset({"cpu"})
TASK = Task(suite="bench", id="1", name="one", source="x")
WORKERS = 3
STALE_S = 0.5
FROZEN_S = 1.2
MAX_ATTEMPTS = 1000
"""So many deaths while judging are not what a dead letter is for."""
STEPS = (150, 40)
"""An agent and a worker live for less than so many steps."""
LATE_STEPS = 12
"""An agent that has put everything lives for less than so many: a result costs it two."""
END_S = 120.0


def request(number):
    """One of the messages."""
    return EvalRequest(
        task=TASK, candidate_source=f"# {number}", device_kind="cpu", image_digest="i"
    )


class Logs:
    """Lines that outlive their writers: each is one write to a file opened for appending."""

    def __init__(self, folder):
        self._folder = folder

    def add(self, name, line):
        """One line, whole even if the writer is killed next."""
        fd = os.open(self._folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{line}\n".encode())
        os.close(fd)

    def lines(self, name):
        """All of them."""
        path = self._folder / name
        return path.read_text("utf-8").splitlines() if path.exists() else []


class Doer:
    """One process's mailbox, whose verbs are named in the log when it dies in them."""

    def __init__(self, root, logs, commit, steps):
        self.verb, self._logs = "open", logs
        self.files = MortalFiles(self.die, steps)
        self.box = FileMailbox(root, files=self.files, commit=commit, max_attempts=MAX_ATTEMPTS)

    def die(self):
        """As kill -9 does it."""
        self._logs.add("kills", f"{self.verb}: {self.files.before}")
        os.kill(os.getpid(), signal.SIGKILL)

    def __getattr__(self, verb):
        def call(*words, **named):
            self.verb = verb
            return getattr(self.box, verb)(*words, **named)

        return call


def be_agent(root, logs, messages, commit, steps, seed):
    """Put everything, journal what has a result, discard it; go on where another was killed."""
    rng = random.Random(seed)
    # Half of them live until they meet results: the others hardly ever get so far.
    late = steps is not None and rng.random() < 0.5
    doer = Doer(root, logs, commit, None if late else steps)
    sent = {r.request_id: r for r in map(request, range(messages))}
    journal = dict(line.split(" ", 1) for line in logs.lines("journal"))
    waiting = [i for i in sent if i not in journal]
    for start in range(0, len(waiting), 20):
        doer.put_many([sent[i] for i in waiting[start : start + 20]])
    if late:
        doer.files.steps_left = steps % LATE_STEPS
    while waiting:
        found = doer.results(waiting)
        for request_id, result in found.items():
            logs.add("journal", f"{request_id} {result.message}")
        if rng.random() < 0.3:
            again = doer.results(list(found))
            assert all(again[i] == found[i] for i in again), "a result has changed"
        doer.discard(found)
        waiting = [i for i in waiting if i not in found]
        time.sleep(0.002)


def be_worker(root, logs, commit, steps, seed):
    """Claim, mark, commit and clean up until killed or told to leave."""
    doer, rng = Doer(root, logs, commit, steps), random.Random(seed)
    me, count = f"w{os.getpid()}", 0
    while not doer.closed():
        count += 1
        doer.beat(
            WorkerBeat(
                worker_id=me,
                host=host_name(),
                pid=os.getpid(),
                start_token=start_token(),
                counter=count,
                state="judging",
                device_kind="cpu",
                started_at=0.0,
            )
        )
        doer.requeue_lost(stale_s=STALE_S, is_alive=alive_here)
        claims = [c for c in doer.claim(me, CPU, rng.choice([1, 4])) if doer.judging(c)]
        if claims and rng.random() < 0.1:
            doer.release(claims.pop())
        pairs = [
            (c, EvalResult(key=c.request.key, status=EvalStatus.TIMEOUT, message=f"{me}-{count}"))
            for c in claims
        ]
        for (claim, result), stood in zip(pairs, doer.commit_many(pairs), strict=True):
            if stood:
                logs.add("won", f"{claim.request.request_id} {result.message}")
        time.sleep(0.002 if claims else 0.01)


def drive(folder, messages, kills, commit, seed, shards):
    """All of it. Returns the document of this way to commit."""
    rng, logs, root = random.Random(seed), Logs(folder), folder / "box"
    FileMailbox(root, commit=commit, shards=shards)
    parts = [functools.partial(be_agent, root, logs, messages, commit)]
    parts += [functools.partial(be_worker, root, logs, commit)] * WORKERS
    running = [None] * len(parts)
    killed = frozen = 0
    end_s = None
    while True:
        spent = killed + len(logs.lines("kills"))
        for n, process in enumerate(running):
            if process is None or (not process.is_alive() and process.exitcode != 0):
                if process is not None and process.exitcode not in (None, -signal.SIGKILL):
                    raise SystemExit(f"a process failed with {process.exitcode}")
                steps = rng.randrange(STEPS[n > 0]) if spent < kills else None
                running[n] = FORK.Process(target=parts[n], args=(steps, rng.random()))
                running[n].start()
        if spent >= kills:
            end_s = end_s or time.monotonic() + END_S
            # An agent of earlier days may yet die of its last step: that is not the end.
            if running[0].exitcode == 0 or time.monotonic() > end_s:
                break
            time.sleep(0.05)
            continue
        time.sleep(rng.uniform(0.01, 0.05))
        victim = rng.choice(running)
        if rng.random() < 0.2 and victim.is_alive():
            victim.kill()
            victim.join()
            killed += 1
        elif rng.random() < 0.02 and victim.is_alive():
            os.kill(victim.pid, signal.SIGSTOP)
            time.sleep(FROZEN_S)
            os.kill(victim.pid, signal.SIGCONT)
            frozen += 1
    FileMailbox(root).close()
    for process in running:
        process.join(20)
        process.kill()
    journal = {}
    for line in logs.lines("journal"):
        journal.setdefault(line.split(" ", 1)[0], set()).add(line.split(" ", 1)[1])
    won = Counter(line.split(" ")[0] for line in logs.lines("won"))
    steps = Counter(logs.lines("kills"))
    return {
        "messages": messages,
        "journalled": len(journal),
        "lost": messages - len(journal),
        "committed_twice": sum(n - 1 for n in won.values())
        + sum(len(r) > 1 for r in journal.values()),
        "kills": {"before_a_step": sum(steps.values()), "at_a_random_time": killed},
        "frozen": frozen,
        "kills_by_step": dict(sorted(steps.items())),
    }


def main():
    """Run it."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--kills", type=int, default=600, help="for each way to commit (600)")
    words.add_argument("--messages", type=int, default=2000, help="for each way (2000)")
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--out", type=Path, help="folder for the JSON; stdout without it")
    asked = words.parse_args()
    ways = {}
    for commit, shards in (("link", 1), ("directory", 1), ("link", 4)):
        folder = Path(tempfile.mkdtemp(prefix="mailbox-kills-"))
        way = commit if shards == 1 else f"{commit}, {shards} shards"
        ways[way] = drive(folder, asked.messages, asked.kills, commit, asked.seed, shards)
        shutil.rmtree(folder)
    stamp.write(
        {**stamp.stamp("mailbox_kills", MODULES), "seed": asked.seed, "ways": ways}, asked.out
    )
    sys.exit(any(way["lost"] or way["committed_twice"] for way in ways.values()))


if __name__ == "__main__":
    main()

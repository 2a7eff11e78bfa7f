"""A mailbox whose agent and workers are killed all the time: what is lost, what is committed twice.

    python tests/bench/mailbox_kills.py [--kills N] [--messages N] [--seed N] [--out DIR]

An agent puts, reads, journals and discards, some messages at a time; three workers claim, mark,
commit and clean up. Each process is killed with SIGKILL before a step of its file operations that
chance chooses, or at a random time, or frozen for longer than its heartbeat may stand still; then
another takes its place. Agents die in `put_many` and in `discard` by turns, and the next puts again
what has no verdict yet. After so many kills all are left alone until everything is judged. The
document counts the kills before a step by what was done and by the step, and those at a random time
by what had begun last: a step, a verb that had taken none yet, or `between` two verbs. Exit status
1 where anything was lost, put twice or committed twice.
"""

import argparse
import functools
import itertools
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
FIGURES = {
    "": "seed ways",
    "ways.*": (
        "messages journalled lost put_twice committed_twice kills frozen kills_by_step "
        "kills_at_a_random_time_by_step"
    ),
    "ways.*.kills": "before_a_step at_a_random_time",
}
FORK = multiprocessing.get_context("fork")
CPU = frozenset({"cpu"})
TASK = Task(suite="bench", id="1", name="one", source="x")
WORKERS = 3
STALE_S = 0.5
FROZEN_S = 1.2
MAX_ATTEMPTS = 1000
"""So many deaths while judging are not what a dead letter is for."""
IN_FLIGHT = 20
"""An agent waits for so many verdicts at a time: more than 16, so that it fills two files."""
AGENT_STEPS = {"put_many": 60, "discard": 24}
"""An agent dies in one verb, before one of so many steps of it. To put again what is in flight may
take a third of the first; a look finds some results mostly, each of which takes three to discard.
"""
WORKER_STEPS = 40
"""A worker lives for less than so many steps."""
BETWEEN = "between"
NOTE_BYTES = 200
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


class NotedFiles(MortalFiles):
    """Mortal files that tell of each step, in words, before they take it or die."""

    def __init__(self, die, steps, tell):
        super().__init__(die, steps)
        self._tell = tell

    def _step(self, name, *paths):
        self._tell(" ".join([name, *map(place, paths)]))
        super()._step(name, *paths)


def place(path):
    """Where a step is taken: the folder, and of done/ whether the result or the request."""
    above, folder = path.parent.parent.name, path.parent.name
    if above == "new":
        return above  # a shard of it
    if above == "tmp":
        return "tmp/*"  # in a folder that is committed, or was
    return folder + path.suffix if folder == "done" else folder


class Doer:
    """One process's mailbox. What is under way is in its note, and in the log when it dies of it.

    A note is memory that the parent shares, and so outlives the process.
    """

    def __init__(self, root, logs, note, commit, steps):
        self._verb, self._logs, self._note = "open", logs, note
        files = NotedFiles(self.die, steps, self.tell)
        self.box = FileMailbox(root, files=files, commit=commit, max_attempts=MAX_ATTEMPTS)

    def tell(self, step):
        """Note what is done now."""
        self._note.value = f"{self._verb}: {step}".encode()

    def die(self):
        """As kill -9 does it."""
        self._logs.add("kills", self._note.value.decode())
        os.kill(os.getpid(), signal.SIGKILL)

    def __getattr__(self, verb):
        def call(*words, **named):
            self._verb, self._note.value = verb, verb.encode()
            try:
                return getattr(self.box, verb)(*words, **named)
            finally:
                self._note.value = BETWEEN.encode()

        return call


def be_agent(root, logs, messages, commit, note, steps, seed):
    """Put, journal what has a result, discard it; go on where another was killed."""
    rng = random.Random(seed)
    putting, discarding = (Doer(root, logs, note, commit, steps.get(verb)) for verb in AGENT_STEPS)
    journal = {line.split(" ")[0] for line in logs.lines("journal")}
    waiting = {
        r.request_id: r for r in map(request, range(messages)) if r.request_id not in journal
    }
    taken, mine = set(logs.lines("put")), set()
    while waiting:
        new = [i for i in itertools.islice(waiting, IN_FLIGHT) if i not in mine]
        if new:
            took = putting.put_many([waiting[i] for i in new])
            # What `put` has returned for is there until it is discarded.
            for request_id in itertools.compress(new, took):
                if request_id in taken:
                    logs.add("put twice", request_id)
            logs.add("put", "\n".join(new))
            mine.update(new)
        found = discarding.results(mine)
        for request_id, result in found.items():
            logs.add("journal", f"{request_id} {result.message}")
        if rng.random() < 0.3:
            again = discarding.results(list(found))
            assert all(again[i] == found[i] for i in again), "a result has changed"
        discarding.discard(found)
        for request_id in found:
            mine.remove(request_id)
            del waiting[request_id]
        time.sleep(0.002)


def be_worker(root, logs, commit, note, steps, seed):
    """Claim, mark, commit and clean up until killed or told to leave."""
    doer, rng = Doer(root, logs, note, commit, steps), random.Random(seed)
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


def life(number, verbs, rng):
    """How many steps the next process in this place shall live; of which verb, if an agent."""
    if number:
        return rng.randrange(WORKER_STEPS)
    verb = next(verbs)
    return {verb: rng.randrange(AGENT_STEPS[verb])}


def drive(folder, messages, kills, commit, seed, shards):
    """All of it. Returns the document of this way to commit."""
    rng, logs, root = random.Random(seed), Logs(folder), folder / "box"
    FileMailbox(root, commit=commit, shards=shards)
    parts = [functools.partial(be_agent, root, logs, messages, commit)]
    parts += [functools.partial(be_worker, root, logs, commit)] * WORKERS
    running, notes = [None] * len(parts), [FORK.RawArray("c", NOTE_BYTES) for _ in parts]
    verbs, random_kills, frozen, end_s = itertools.cycle(AGENT_STEPS), Counter(), 0, None
    while True:
        spent = random_kills.total() + len(logs.lines("kills"))
        for n, process in enumerate(running):
            if process is None or (not process.is_alive() and process.exitcode != 0):
                if process is not None and process.exitcode not in (None, -signal.SIGKILL):
                    raise SystemExit(f"a process failed with {process.exitcode}")
                immortal = None if n else {}
                steps = life(n, verbs, rng) if spent < kills else immortal
                notes[n].value = BETWEEN.encode()
                running[n] = FORK.Process(target=parts[n], args=(notes[n], steps, rng.random()))
                running[n].start()
        if spent >= kills:
            end_s = end_s or time.monotonic() + END_S
            # An agent of earlier days may yet die of its last step: that is not the end.
            if running[0].exitcode == 0 or time.monotonic() > end_s:
                break
            time.sleep(0.05)
            continue
        time.sleep(rng.uniform(0.01, 0.05))
        n = rng.randrange(len(running))
        victim = running[n]
        if rng.random() < 0.2 and victim.is_alive():
            victim.kill()
            victim.join()
            random_kills[notes[n].value.decode()] += 1
        elif rng.random() < 0.02 and victim.is_alive():
            os.kill(victim.pid, signal.SIGSTOP)
            time.sleep(FROZEN_S)
            os.kill(victim.pid, signal.SIGCONT)
            frozen += 1
    FileMailbox(root).close()
    for process in running:
        process.join(20)
        process.kill()
    return {**ended(logs, messages, random_kills), "frozen": frozen}


def ended(logs, messages, random_kills):
    """What became of the messages, and who was killed at what."""
    journal = {}
    for line in logs.lines("journal"):
        journal.setdefault(line.split(" ", 1)[0], set()).add(line.split(" ", 1)[1])
    won = Counter(line.split(" ")[0] for line in logs.lines("won"))
    steps = Counter(logs.lines("kills"))
    return {
        "messages": messages,
        "journalled": len(journal),
        "lost": messages - len(journal),
        "put_twice": len(logs.lines("put twice")),
        "committed_twice": sum(n - 1 for n in won.values())
        + sum(len(r) > 1 for r in journal.values()),
        "kills": {"before_a_step": steps.total(), "at_a_random_time": random_kills.total()},
        "kills_by_step": dict(sorted(steps.items())),
        "kills_at_a_random_time_by_step": dict(sorted(random_kills.items())),
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
    document = {**stamp.stamp("mailbox_kills", MODULES), "seed": asked.seed, "ways": ways}
    stamp.write(document, asked.out)
    stamp.check(document, FIGURES)
    wrong = ("lost", "put_twice", "committed_twice")
    sys.exit(any(way[name] for way in ways.values() for name in wrong))


if __name__ == "__main__":
    main()

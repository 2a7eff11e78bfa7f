"""The mailbox on a disk: nothing lost, nothing twice, and how fast beside the disk's own rate.

    python tests/bench/mailbox.py [--messages N] [--processes N] [--folder DIR] [--out DIR]

Each part once with one request a file and once with 16. All processes put their share, then all
claim, mark and commit until the queue is empty, then all read and discard the results of what
they put. The disk's own rate is that of as many processes that write a file of the same size
in one folder, fsync it and rename it into another; it is taken before, between and after the
phases, since it varies from minute to minute on a machine that others use too. The mailbox is that
of a run, of which `pike-hpc status RUN --json` is timed while all messages wait: inside a process
(`status_s`) and as a whole command, most of which is Python's start (`status_command_s`).

Exit status 1 where a message was lost or committed twice, and where a figure is not as `wanted`
says; each such one is named on stderr, below the document, which is written all the same.
"""

import argparse
import contextlib
import io
import itertools
import json
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import endless
import stamp
from mailbox_calls import CPU, metadata, request, verdict

from pike_hpc.cli.main import main as pike_hpc
from pike_hpc.machine import MOUNT_TABLE, mount_of, mount_table
from pike_hpc.mailbox import FileMailbox
from pike_hpc.mailbox.envelope import seal
from pike_hpc.worker import SimulatedJudge, WorkerOptions, run_worker

MODULES = (
    "cli/run.py",
    "cli/status.py",
    "config/run_file.py",
    "config/yaml_source.py",
    "journal/history.py",
    "mailbox/arrivals.py",
    "mailbox/batch.py",
    "mailbox/beats.py",
    "mailbox/commit.py",
    "mailbox/disk.py",
    "mailbox/envelope.py",
    "mailbox/file_mailbox.py",
    "mailbox/files.py",
    "mailbox/janitor.py",
    "mailbox/layout.py",
    "mailbox/leases.py",
    "mailbox/line.py",
    "mailbox/shards.py",
    "mailbox/store.py",
    "worker/loop.py",
    "worker/options.py",
    "worker/pace.py",
)
"""Those of cli, config and journal: what `status` reads a run without jobs with."""
FIGURES = {
    "": "file_system processes wanted single batched request_to_judge metadata good_enough",
    "single|batched": (
        "messages requests_per_file lost committed_twice left_over put_per_s judged_per_s "
        "collected_per_s whole_life_per_s disk_files_per_s judged_over_disk whole_life_over_disk "
        "counts_s status_s status_command_s"
    ),
    "request_to_judge": "requests median_ms p95_ms max_ms",
    "metadata": "counted_by per_verdict per_verdict_by_call idle_polls_per_s idle_calls_per_minute",
}
FORK = multiprocessing.get_context("fork")
IN_MEMORY = {"tmpfs", "ramfs"}
OWN_RATE_S = 3.0
LATENCY_ROUNDS = 60
WANTED = {
    "judged_over_disk": 0.2,
    "judged_per_s_with_16_a_file": 2000.0,
    "counts_s": 1.0,
    "status_s": 1.0,
    "request_to_judge_ms": 50.0,
    "operations_per_verdict": 25.0,
    "idle_polls_per_s": 0.2,
}
"""The first two at least, the others at most. Judged is claimed, marked and committed."""


def own_rate(folder, processes):
    """Files a second that these processes write, fsync and rename, by the disk alone."""
    data, barrier, told = seal(request(0)), FORK.Barrier(processes), FORK.Queue()

    def write(number):
        barrier.wait()
        count, end = 0, time.monotonic() + OWN_RATE_S
        while time.monotonic() < end:
            name = folder / "tmp" / f"{number}-{count}"
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            os.write(fd, data)
            os.fsync(fd)
            os.close(fd)
            name.rename(folder / "new" / f"{number}-{count}")
            count += 1
        told.put(count)

    for name in ("tmp", "new"):
        (folder / name).mkdir(parents=True)
    together(processes, write)
    total = sum(told.get() for _ in range(processes))
    shutil.rmtree(folder)
    return total / OWN_RATE_S


def together(processes, work):
    """Run work(number) in so many processes; raises where one failed."""
    started = [FORK.Process(target=work, args=(n,)) for n in range(processes)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    if any(process.exitcode for process in started):
        raise SystemExit("a process of the benchmark failed")


def through(folder, messages, processes, each):
    """All messages through the mailbox of a run made in `folder`, `each` a file. Returns the
    document of this part."""
    folder.mkdir()
    # Of one task, which has not begun: its model is never asked.
    run = endless.make_run(folder, name="bench", url="http://127.0.0.1:9/v1", tasks=1, workers=1)
    mailbox, root = run.mailbox, run.mailbox.root
    committed, missing = FORK.Queue(), FORK.Queue()

    def mine(number):
        return range(number, messages, processes)

    def put(number):
        box, numbers = FileMailbox(root), iter(mine(number))
        while batch := list(itertools.islice(numbers, each)):
            assert all(box.put_many([request(i) for i in batch]))

    def work(number):
        box, done = FileMailbox(root), []
        while claims := box.claim(f"w{number}", CPU, each):
            for claim in claims:
                assert box.judging(claim)
            pairs = [(claim, verdict(claim.request)) for claim in claims]
            for (_, result), won in zip(pairs, box.commit_many(pairs), strict=True):
                if won:
                    done.append(result)
        done = [result.request_id for result in done]
        committed.put(done)

    def collect(number):
        box, numbers, lost = FileMailbox(root), iter(mine(number)), 0
        while batch := [request(i) for i in itertools.islice(numbers, 500)]:
            found = box.results([one.request_id for one in batch])
            lost += len(batch) - len(found)
            box.discard(found)
        missing.put(lost)

    def disk():
        return own_rate(folder.with_name("own"), processes)

    rates = [disk()]
    put_s = timed(lambda: together(processes, put))
    rates.append(disk())
    counts_s = [timed(lambda: assert_waiting(mailbox, messages)) for _ in range(5)]
    status_s = [timed(lambda: assert_shown(status_here(run.dir), messages)) for _ in range(5)]
    command_s = [timed(lambda: assert_shown(status(run.dir), messages)) for _ in range(3)]
    # A worker's list may be longer than a pipe holds: it is read while it runs.
    won = Counter()
    reader = threading.Thread(target=lambda: won.update(drained(committed, processes)))
    reader.start()
    work_s = timed(lambda: together(processes, work))
    reader.join()
    rates.append(disk())
    collect_s = timed(lambda: together(processes, collect))
    lost = sum(missing.get() for _ in range(processes))
    left = mailbox.counts()
    shutil.rmtree(folder)
    rates.append(disk())
    whole_s = put_s + work_s + collect_s
    return {
        "messages": messages,
        "requests_per_file": each,
        "lost": lost + messages - len(won),
        "committed_twice": sum(count - 1 for count in won.values()),
        "left_over": left.new + left.claimed + left.done + left.dead,
        "put_per_s": round(messages / put_s, 1),
        "judged_per_s": round(messages / work_s, 1),
        "collected_per_s": round(messages / collect_s, 1),
        "whole_life_per_s": round(messages / whole_s, 1),
        "disk_files_per_s": [round(rate, 1) for rate in rates],
        "judged_over_disk": round(messages / work_s / statistics.mean(rates), 3),
        "whole_life_over_disk": round(messages / whole_s / statistics.mean(rates), 3),
        "counts_s": {"waiting": messages, **median_and_max(counts_s)},
        "status_s": {"waiting": messages, **median_and_max(status_s)},
        "status_command_s": {"waiting": messages, **median_and_max(command_s)},
    }


def median_and_max(seconds):
    """Of some."""
    return {"median": round(statistics.median(seconds), 4), "max": round(max(seconds), 4)}


def assert_waiting(mailbox, messages):
    """What `pike-hpc status` asks of a mailbox."""
    assert mailbox.counts().new == messages


def assert_shown(said, messages):
    """What `pike-hpc status` says of it."""
    assert json.loads(said)["queue"]["new"] == messages


def status_here(run_dir):
    """What the command prints, by a process that has loaded it already."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert pike_hpc(["status", str(run_dir), "--json"]) == 0
    return said.getvalue()


def status(run_dir):
    """What the command prints."""
    argv = [sys.executable, "-m", "pike_hpc", "status", str(run_dir), "--json"]
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout


def drained(told, processes):
    """Every id that a worker was told it had committed."""
    for _ in range(processes):
        yield from told.get()


def timed(call):
    """Seconds that a call took."""
    began = time.monotonic()
    call()
    return time.monotonic() - began


class NotingJudge:
    """Notes when it was given a request."""

    device_kind = "cpu"

    def __init__(self, told):
        self._told, self._inner = told, SimulatedJudge("cpu")

    def evaluate(self, request, on_phase):
        """A simulated verdict."""
        self._told.put((request.request_id, time.monotonic()))
        return self._inner.evaluate(request, on_phase)

    def kill(self):
        """Nothing runs."""

    def close(self):
        """Nothing runs."""


def latency(root, rounds=LATENCY_ROUNDS, seed=1):
    """Seconds from the begin of `put` until an idle worker's judge has the request."""
    mailbox, told, rng, waits = FileMailbox(root), FORK.Queue(), random.Random(seed), []
    options = WorkerOptions(worker_id="idle", max_idle_s=None, expected_s=0.0)
    worker = FORK.Process(
        target=lambda: run_worker(FileMailbox(root), [NotingJudge(told)], options)
    )
    worker.start()
    for number in range(rounds):
        time.sleep(rng.uniform(0.3, 0.8))
        began = time.monotonic()
        mailbox.put(request(number))
        waits.append(told.get(timeout=60)[1] - began)
    mailbox.close()
    worker.join()
    shutil.rmtree(root)
    waits.sort()
    return {
        "requests": rounds,
        "median_ms": round(1e3 * statistics.median(waits), 1),
        "p95_ms": round(1e3 * waits[int(0.95 * rounds)], 1),
        "max_ms": round(1e3 * waits[-1], 1),
    }


def missed(document):
    """The figures of a document that are not as `WANTED` says, in words."""
    single, batched, metadata = (document[part] for part in ("single", "batched", "metadata"))
    faults = [
        f"{count} {what.replace('_', ' ')} with {part['requests_per_file']} a file"
        for part in (single, batched)
        for what in ("lost", "committed_twice")
        if (count := part[what])
    ]
    least = {
        "judged_over_disk": single["judged_over_disk"],
        "judged_per_s_with_16_a_file": batched["judged_per_s"],
    }
    most = {
        "counts_s": max(part["counts_s"]["max"] for part in (single, batched)),
        "status_s": max(part["status_s"]["max"] for part in (single, batched)),
        "request_to_judge_ms": document["request_to_judge"]["max_ms"],
    }
    if metadata is None:
        faults.append("operations per verdict and idle polls were not counted: no strace here")
    else:
        most["operations_per_verdict"] = metadata["per_verdict"]
        most["idle_polls_per_s"] = metadata["idle_polls_per_s"]
    faults += [
        f"{name}: {found:g}, wanted at least {WANTED[name]:g}"
        for name, found in least.items()
        if found < WANTED[name]
    ]
    faults += [
        f"{name}: {found:g}, wanted at most {WANTED[name]:g}"
        for name, found in most.items()
        if found > WANTED[name]
    ]
    return faults


def tell(document, out):
    """Write it, name what it misses; the exit status."""
    faults = missed(document)
    stamp.write({**document, "good_enough": not faults}, out)
    for fault in faults:
        sys.stderr.write(f"{fault}\n")
    return 1 if faults else 0


def main():
    """Run it."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--messages", type=int, default=100_000, help="through the mailbox (100000)")
    words.add_argument("--processes", type=int, default=16, help="workers (16)")
    words.add_argument("--folder", type=Path, help="on the disk to be measured (the temporary one)")
    words.add_argument("--out", type=Path, help="folder for the JSON; stdout without it")
    asked = words.parse_args()
    place = (asked.folder or Path(tempfile.gettempdir())).resolve()
    kind = mount_of(place, mount_table(MOUNT_TABLE)).kind
    if kind in IN_MEMORY:
        words.error(f"{place} is on {kind}, which has no fsync: give --folder on a disk")
    with tempfile.TemporaryDirectory(prefix="bench-mailbox-", dir=place) as scratch:
        folder = Path(scratch)
        parts = [through(folder / "box", asked.messages, asked.processes, each) for each in (1, 16)]
        document = {
            **stamp.stamp("mailbox", MODULES),
            "file_system": kind,
            "processes": asked.processes,
            "wanted": WANTED,
            "single": parts[0],
            "batched": parts[1],
            "request_to_judge": latency(folder / "box"),
            "metadata": metadata(folder),
        }
    code = tell(document, asked.out)
    stamp.check({**document, "good_enough": not code}, FIGURES)
    return code


if __name__ == "__main__":
    sys.exit(main())

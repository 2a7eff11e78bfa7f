"""What judging holds and leaves: GPU memory, host memory, file descriptors, processes, files.

    python tests/bench/memory.py [--evaluations N] [--small] [--hostile] [--kill-judge N] [--out D]

Evaluations through the real worker and one judge. Sampled after each of them; at
the end everything is closed and looked for. Exit status 1 where something grew or was left.
"""

import argparse
import contextlib
import dataclasses
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import stamp
from hostile import HOSTILE, MARK, SEGMENT
from mixture import dealt, deck, task_of

from pike_hpc.cli.lanes import open_judges, owner_name
from pike_hpc.evaluate.device import detect, image_digest
from pike_hpc.mailbox import MemoryMailbox
from pike_hpc.records import EvalRequest, EvalStatus
from pike_hpc.worker import JudgeUnwell, Stop, WorkerOptions, run_worker

MODULES = (
    "cli/lanes.py",
    "evaluate/judge.py",
    "evaluate/judge_process.py",
    "evaluate/judge_bench.py",
    "evaluate/judge_context.py",
    "evaluate/judge_link.py",
    "evaluate/judge_memory.py",
    "evaluate/judge_room.py",
    "evaluate/judge_spares.py",
    "evaluate/judge_warm.py",
    "evaluate/lane.py",
    "evaluate/runner/serve.py",
    "evaluate/ward.py",
    "evaluate/warden/keeper.py",
    "evaluate/warden/processes.py",
    "worker/loop.py",
)
FIGURES = {
    "": (
        "evaluations seconds statuses judges_killed rss_mb rss_grown_mb fds fds_grown processes "
        "gpu_lowest_mb gpu_judge_mb gpu_runner_mb gpu_grown_mb left"
    ),
    "left": "children orphans folders shared_memory gpu_mb",
}
TIMEOUT_S = 300.0
BRIEF_TIMEOUT_S = 8.0
"""Of hostile programs. One evaluation of a soak in eight ends by it."""
DRAIN_S = 120.0
GROWTH_MB = 64.0
"""More than this between the first and the last quarter is a leak."""
GROWTH_FDS = 4
WARM_EVALUATIONS = 60
"""With fewer, the second task that a judge keeps warm looks like growth: 14 files."""
LEFT_GPU_MB = 64.0
JUDGE = "pike_hpc.evaluate.judge_process"
"""In the command line of a judge's process."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """After one evaluation."""

    rss_mb: float
    """Of this process and its judges, what is shared counted in each."""
    fds: int
    processes: int
    gpu_mb: float | None
    gpu_judge_mb: float | None
    gpu_runner_mb: float | None
    """The least of any runner: one that waits holds a context and nothing else."""


def processes():
    """(parent, command line) by process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (
                (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            )
            found[int(entry.name)] = (parent, command)
    return found


def below(pid, table):
    """Processes below `pid`."""
    found = [p for p, (parent, _) in table.items() if parent == pid]
    return found + [each for child in found for each in below(child, table)]


def judges_of(pid):
    """Processes of judges below `pid`."""
    table = processes()
    return [p for p in below(pid, table) if JUDGE in table[p][1]]


def sample(gpu):
    """What is held now; `gpu`: the UUID of the one that is judged on."""
    table = processes()
    mine = below(os.getpid(), table)
    kept = [os.getpid(), *(p for p in mine if JUDGE in table[p][1])]
    rss = fds = 0
    for pid in kept:
        with contextlib.suppress(OSError):
            rss += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf(
                "SC_PAGE_SIZE"
            )
            fds += len(list(Path(f"/proc/{pid}/fd").iterdir()))
    by_process = {p: mb for p, mb in gpu_by_process(gpu).items() if p in mine}
    judges = [mb for p, mb in by_process.items() if p in kept]
    return Sample(
        rss_mb=rss / 2**20,
        fds=fds,
        processes=len(mine),
        gpu_mb=gpu_mb(gpu),
        gpu_judge_mb=sum(judges) if judges else None,
        gpu_runner_mb=min((mb for p, mb in by_process.items() if p not in kept), default=None),
    )


def gpu_of(device):
    """UUID of the GPU that is judged on; empty without one."""
    return next(iter(device.gpus), "")


def gpu_mb(uuid):
    """Used on a GPU; None without one."""
    rows = asked_of(uuid, "--query-gpu=memory.used")
    return float(rows[0][0]) if rows else None


def gpu_by_process(uuid):
    """Used on a GPU by each process; empty where the driver doesn't tell."""
    rows = asked_of(uuid, "--query-compute-apps=pid,used_memory")
    return {int(pid): float(mb) for pid, mb in rows if mb.isdecimal()}


def asked_of(uuid, query):
    """Lines of nvidia-smi about a GPU, by column; none without one."""
    if not uuid:
        return []
    asked = ["nvidia-smi", f"--id={uuid}", query, "--format=csv,noheader,nounits"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True)
    return [[word.strip() for word in line.split(",")] for line in done.stdout.splitlines()]


class SampledJudge:
    """Passes requests on to a judge, looks around after each, and now and then kills it."""

    def __init__(self, inner, gpu, samples, statuses, kill_every, rng):
        self._inner, self._gpu = inner, gpu
        self._samples, self._statuses = samples, statuses
        self._kill_every, self._rng = kill_every, rng
        self._count = 0
        self.device_kind = inner.device_kind
        self.killed = 0

    def evaluate(self, request, on_phase):
        """The inner judge's verdict."""
        self._count += 1
        timer = None
        if self._kill_every and self._count % self._kill_every == 0:
            timer = threading.Timer(self._rng.uniform(0.0, 6.0), self._kill)
            timer.start()
        try:
            result = self._inner.evaluate(request, on_phase)
        except JudgeUnwell as unwell:
            self._statuses[str(unwell.result.status)] += 1
            raise
        finally:
            if timer is not None:
                timer.cancel()
                timer.join()
            self._samples.append(sample(self._gpu))
        self._statuses[str(result.status)] += 1
        return result

    def close(self):
        """Close the inner judge."""
        self._inner.close()

    def _kill(self):
        for pid in judges_of(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.killed += 1


def requests(device, count, programs, seed):
    """So many requests, each of a program of its own."""
    cards = dealt(programs, seed)
    for _ in range(count):
        program, number = next(cards)
        brief = program.kind == "hostile" or EvalStatus.TIMEOUT in program.expected
        yield EvalRequest(
            task=task_of(program.task),
            candidate_source=program.make(number),
            device_kind=device.kind,
            image_digest=image_digest(),
            timeout_s=BRIEF_TIMEOUT_S if brief else TIMEOUT_S,
        )


def left_behind():
    """What is still there, by kind."""
    table = processes()
    return {
        "children": len(below(os.getpid(), table)),
        "orphans": sum(MARK in command for _, command in table.values()),
        "folders": len(list(Path(tempfile.gettempdir()).glob(f"pike-{owner_name(os.getpid())}-*"))),
        "shared_memory": int(Path("/dev/shm", SEGMENT).exists()),
    }


def lowest(values):
    """Of those that are known."""
    return min((value for value in values if value is not None), default=None)


def grown(samples, value):
    """Median of the last quarter less that of the second: the first one warms up.

    Of samples with as many processes as most: where runners start slowly, as beside others at work,
    now two of them wait and now three.
    """
    part = max(1, len(samples) // 4)
    second, last = samples[part : 2 * part] or samples, samples[-part:]
    known = {sample.processes for sample in second}
    for usual, _ in Counter(s.processes for s in last if s.processes in known).most_common(1):
        second = [sample for sample in second if sample.processes == usual]
        last = [sample for sample in last if sample.processes == usual]
    return statistics.median(map(value, last)) - statistics.median(map(value, second))


def drive(device, asked):
    """All evaluations. Returns (samples, statuses, judges killed, seconds)."""
    fits = "cpu" if asked.small else device.torch_device
    programs = deck(fits, asked.kinds and set(asked.kinds.split(",")))
    if asked.hostile:
        programs = [*programs, *HOSTILE]
    mailbox, samples, statuses = MemoryMailbox(), [], Counter()
    for request in requests(device, asked.evaluations, programs, asked.seed):
        mailbox.put(request)
    options = WorkerOptions(worker_id="memory", max_idle_s=0.5, expected_s=0.0, drain_s=DRAIN_S)
    stop = Stop()
    if asked.seconds:
        timer = threading.Timer(asked.seconds, stop.request, ["the time is up"])
        timer.daemon = True
        timer.start()
    start = time.monotonic()
    with open_judges(device, "auto", Path(tempfile.gettempdir())) as judges:
        rng = random.Random(asked.seed)
        watched = SampledJudge(judges[0], gpu_of(device), samples, statuses, asked.kill_judge, rng)
        run_worker(mailbox, [watched], options, stop=stop)
    return samples, statuses, watched.killed, time.monotonic() - start


def main():
    """Run it; 1 where something grew or was left."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--evaluations", type=int, default=150, help="how many at most (150)")
    words.add_argument("--seconds", type=float, help="stop after so long")
    words.add_argument("--device", default="auto")
    words.add_argument("--kinds", help="of programs: inline,triton,compile,torch,broken (all)")
    words.add_argument(
        "--small",
        action="store_true",
        help="tasks that fit a CPU alone: the judge keeps all of them, so what grows is a leak",
    )
    words.add_argument("--hostile", action="store_true", help="programs that leave things behind")
    words.add_argument("--kill-judge", type=int, default=0, metavar="N", help="at each Nth")
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--out", type=Path, help="folder for the JSON; stdout without it")
    asked = words.parse_args()
    device = detect(asked.device, visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    device = dataclasses.replace(device, gpus=device.gpus[:1])
    gpu_before = gpu_mb(gpu_of(device))
    samples, statuses, killed, seconds = drive(device, asked)
    if len(samples) < 4:
        raise SystemExit(f"only {len(samples)} evaluations in {seconds:.0f} s: nothing to compare")
    gpu_after = gpu_mb(gpu_of(device))
    gpu_idle = [s.gpu_mb - gpu_before for s in samples if gpu_before is not None]
    document = {
        **stamp.stamp("soak" if asked.hostile else "memory", MODULES, device.torch_device),
        "evaluations": len(samples),
        "seconds": round(seconds, 1),
        "statuses": dict(sorted(statuses.items())),
        "judges_killed": killed,
        "rss_mb": round(statistics.median(s.rss_mb for s in samples), 1),
        "rss_grown_mb": round(grown(samples, lambda s: s.rss_mb), 1),
        "fds": statistics.median(s.fds for s in samples),
        "fds_grown": grown(samples, lambda s: s.fds),
        "processes": statistics.median(s.processes for s in samples),
        "gpu_lowest_mb": round(min(gpu_idle), 1) if gpu_idle else None,
        "gpu_judge_mb": lowest(s.gpu_judge_mb for s in samples),
        "gpu_runner_mb": lowest(s.gpu_runner_mb for s in samples),
        "gpu_grown_mb": round(grown(samples, lambda s: s.gpu_mb), 1) if gpu_idle else None,
        "left": {
            **left_behind(),
            "gpu_mb": 0.0 if gpu_before is None else round(gpu_after - gpu_before, 1),
        },
    }
    stamp.write(document, asked.out)
    stamp.check(document, FIGURES)
    sys.exit(1 if faults(document) else 0)


def faults(document):
    """What is wrong, said on stderr."""
    left = document["left"]
    wrong = [f"left behind: {kind} {n}" for kind, n in left.items() if kind != "gpu_mb" and n]
    if left["gpu_mb"] > LEFT_GPU_MB:
        wrong.append(f"left on the GPU: {left['gpu_mb']} MB")
    warm = document["evaluations"] >= WARM_EVALUATIONS
    if warm and document["rss_grown_mb"] > GROWTH_MB:
        wrong.append(f"host memory grew by {document['rss_grown_mb']} MB")
    if warm and document["fds_grown"] > GROWTH_FDS:
        wrong.append(f"open files grew by {document['fds_grown']}")
    for line in wrong:
        sys.stderr.write(f"memory: {line}\n")
    return wrong


if __name__ == "__main__":
    main()

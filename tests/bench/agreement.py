"""The judge's speedup beside the one of a plain process, and whether it repeats.

    python tests/bench/agreement.py [--repeats N] [--seconds N] [--gpus N] [--device D]
                                    [--out DIR [--go-on]]

Honest programs whose reference takes more than a millisecond on CUDA. Each is judged N times in the
lanes of a GPU; it and the reference are timed by turns in plain processes of their own with
triton.testing.do_bench (on a CPU, as medians). An interval is right where it holds the median of
all repeats' speedups. The programs of a task share a GPU and its judges, which set the task up
once; with --gpus above 1 several tasks are measured at a time.
A run that a time limit ended goes on with --go-on: what DIR has of this code, day and kind of card
stands, programs that it lacks come first, and those with fewer repeats have another try.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import math
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import stamp
from mixture import PASS, PROGRAMS

from pike_hpc.cli.lanes import open_judges
from pike_hpc.evaluate.crew import JudgeLost
from pike_hpc.evaluate.device import detect, image_digest
from pike_hpc.machine import divide_cpus, physical_cores
from pike_hpc.records import EvalRequest
from pike_hpc.tasks import effective_source, find_task
from pike_hpc.worker import JudgeUnwell

MODULES = (
    "evaluate/centre.py",
    "evaluate/judge_anchor.py",
    "evaluate/judge_cores.py",
    "evaluate/judge_guard.py",
    "evaluate/judge_link.py",
    "evaluate/judge_plan.py",
    "evaluate/judge_side.py",
    "evaluate/judge_timing.py",
    "evaluate/judge_outcome.py",
    "evaluate/judge_uneven.py",
    "evaluate/judge_verdict.py",
    "evaluate/nvml_guard.py",
    "evaluate/runner/doorbell.py",
    "evaluate/runner/serve.py",
    "evaluate/statistics.py",
)
FIGURES = {"": "plain programs rows"}
WANTED = {
    "cuda": (
        ("level3-pike/43", "softmax", "triton"),
        ("level3-pike/43", "softmax", "inline"),
        ("level3-pike/43", "half", "torch"),
        ("level3-pike/44", "tf32", "torch"),
        ("level3-pike/44", "softmax", "triton"),
    ),
    "cpu": (("level3-pike/1", "tf32", "torch"),),
}
TIMEOUT_S = 600.0
INSIDE = 17 / 20
"""Part of the repeats whose interval must hold the pooled value: what a 95 % interval of 20
repeats gives in 98 of 100 cases."""

TURNS, REST_S = 5, 1.0
"""Of timing reference and program outside: a machine's cores may change their speed. Before each
the GPU rests: half a second of one model after another took an H200 to its 700 W, its clock from
1,980 to 1,680 MHz, and made do_bench's ratios of two of them 5 % apart. The judge's windows
never last so long."""

_PLAIN = """
import importlib.util, statistics, sys, time
import torch

def load(path):
    spec = importlib.util.spec_from_file_location(path.rpartition("/")[2][:-3], path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module

task, device = load(sys.argv[1]), sys.argv[2]
torch.manual_seed(1)
arguments = task.get_init_inputs()
model = task.Model(*arguments).to(device).eval()
for path in sys.argv[3:]:
    weights, model = model.state_dict(), load(path).ModelNew(*arguments).to(device).eval()
    model.load_state_dict(weights)
inputs = [x.to(device) for x in task.get_inputs()]

def once():
    start = time.perf_counter()
    model(*inputs)
    return (time.perf_counter() - start) * 1e3

def median_ms():
    if device == "cuda":
        from triton.testing import do_bench
        return do_bench(lambda: model(*inputs), return_mode="median")
    return statistics.median(once() for _ in range(100))

with torch.no_grad():
    for _ in range(3):
        model(*inputs)
    for _ in sys.stdin:
        print(median_ms(), flush=True)
"""


def plain(task, source, device):
    """Milliseconds of (reference, program) in each of so many turns.

    Each in an ordinary process of its own: a program may set flags of torch that hold for the
    reference as well.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        files = [Path(folder, "plain_task.py"), Path(folder, "plain_candidate.py")]
        for path, text in zip(files, (effective_source(task), source), strict=True):
            path.write_text(text, "utf-8")
        ask = [sys.executable, "-c", _PLAIN, str(files[0]), device.torch_device]
        env = {**os.environ, "TORCH_EXTENSIONS_DIR": folder, "TRITON_CACHE_DIR": folder}
        if device.gpus:
            env["CUDA_VISIBLE_DEVICES"] = device.gpus[0]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": env}
        both = [
            running.enter_context(subprocess.Popen(argv, **pipes))
            for argv in (ask, [*ask, str(files[1])])
        ]
        turns = [[_asked(each) for each in both] for _ in range(1 + TURNS)]
    return turns[1:]  # in the first one the other process was still starting


def _asked(process):
    """The milliseconds that a plain process says when it is asked, on a GPU that has rested."""
    time.sleep(REST_S)
    process.stdin.write("\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def judged(judges, request, repeats, until):
    """So many verdicts with a timing, and what went wrong. Lanes take turns, as in a worker."""
    turns, results, wrong = iter(range(repeats)), [], []

    def in_lane(judge):
        while time.monotonic() < until and next(turns, None) is not None:
            try:
                result = judge.evaluate(request, lambda phase: None)
            except (JudgeLost, JudgeUnwell) as lost:
                wrong.append(str(lost))
                return
            if result.timing is None:
                wrong.append(f"{result.status}: {result.message}"[:300])
            else:
                results.append(result)

    with ThreadPoolExecutor(len(judges)) as pool:
        list(pool.map(in_lane, judges))
    return results, wrong


def row(program, results, wrong, turns):
    """One line of the table."""
    outside = statistics.median(reference / other for reference, other in turns)
    found = {
        "task": program.task,
        "program": program.name,
        "kind": program.kind,
        "wrong": wrong,
        "do_bench_ms": [round(statistics.median(each), 4) for each in zip(*turns, strict=True)],
        "do_bench_speedup": round(outside, 4),
    }
    if not results:
        return found
    repeated = repeats_of([result.timing for result in results])
    pooled, inside = repeated["pooled_speedup"], repeated["inside"]
    return {
        **found,
        **repeated,
        "over_do_bench": round(pooled / outside, 4),
        "enough_inside": inside >= INSIDE * len(results),
    }


def repeats_of(timings):
    """What timings of one program say together; `inside`: intervals that hold the median."""
    speedups = [t.speedup for t in timings]
    pooled = statistics.median(speedups)
    return {
        "repeats": len(timings),
        "reference_ms": round(statistics.median(t.reference_ms for t in timings), 4),
        "candidate_ms": round(statistics.median(t.candidate_ms for t in timings), 4),
        "pooled_speedup": round(pooled, 4),
        "spread_of_repeats": round(statistics.pstdev(map(math.log, speedups)), 4),
        "half_width": round(
            statistics.median((t.ci95[1] - t.ci95[0]) / (2 * t.speedup) for t in timings), 4
        ),
        "inside": sum(t.ci95[0] <= pooled <= t.ci95[1] for t in timings),
        "speedups": [[round(x, 4) for x in (t.speedup, *t.ci95)] for t in timings],
    }


def measured(device, programs, repeats, seconds, keep):
    """Gives `keep` the row of each program of one task, on the one GPU that `device` has."""
    task = find_task(programs[0].task)
    sources = [program.make(1) for program in programs]
    outside = [plain(task, source, device) for source in sources]
    with open_judges(device, "auto") as judges:
        for program, source, turns in zip(programs, sources, outside, strict=True):
            request = asking(device, task, source)
            results, wrong = judged(judges, request, repeats, time.monotonic() + seconds)
            keep({**row(program, results, wrong, turns), "lanes": len(judges)})


def asking(device, task, source):
    """The request for a verdict on one program."""
    return EvalRequest(
        task=task,
        candidate_source=source,
        device_kind=device.kind,
        image_digest=image_digest(),
        timeout_s=TIMEOUT_S,
    )


def standing(document, out):
    """Rows of an earlier run of the same code on such a machine that day, by program."""
    path = stamp.place(document, out)
    earlier = json.loads(path.read_text("utf-8")) if path.exists() else {"rows": []}
    alike = all(document[key] == earlier.get(key) for key in ("code_digest", "date", "programs"))
    if not alike or document["machine"].get("gpus") != earlier["machine"].get("gpus"):
        return {}
    return {named(row): row for row in earlier["rows"]}


def named(row):
    """The program that a row is of, as `WANTED` has it."""
    return row["task"], row["program"], row["kind"]


def unfinished(programs, rows, repeats):
    """Programs with too few repeats, by task; those without any, and their tasks, come first."""

    def measured_of(program):
        return rows.get((program.task, program.name, program.kind), {}).get("repeats", 0)

    left = [p for p in programs if measured_of(p) < repeats]
    new = {p.task for p in left if not measured_of(p)}
    return sorted(left, key=lambda p: (p.task not in new, p.task, measured_of(p) > 0))


def main():
    """Run it."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--repeats", type=int, default=20)
    words.add_argument("--seconds", type=float, default=100.0, help="of judging a program (100)")
    words.add_argument("--gpus", type=int, default=1, help="that many programs at a time")
    words.add_argument("--device", default="auto")
    words.add_argument("--out", type=Path, help="folder for the JSON; stdout without it")
    words.add_argument("--go-on", action="store_true", help="measure only what --out lacks")
    asked = words.parse_args()
    if asked.go_on and asked.out is None:
        words.error("--go-on wants --out: the folder that holds what was measured")
    device = detect(asked.device, visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    if asked.gpus > max(1, len(device.gpus)):
        words.error(f"--gpus {asked.gpus}: there are {len(device.gpus)} ({device.why})")
    wanted = WANTED[device.torch_device]
    chosen = [p for p in PROGRAMS if (p.task, p.name, p.kind) in wanted and p.expected == PASS]
    document = {
        **stamp.stamp("agreement", MODULES, device.torch_device),
        "plain": "triton.testing.do_bench" if device.torch_device == "cuda" else "medians",
        "programs": len(chosen),
        "rows": [],
    }
    rows = standing(document, asked.out) if asked.go_on else {}
    document["rows"] = list(rows.values())
    by_task = itertools.groupby(unfinished(chosen, rows, asked.repeats), key=lambda p: p.task)

    def keep(found):
        sys.stderr.write(json.dumps(found) + "\n")
        with one_at_a_time:
            earlier = rows.get(named(found), {})
            if found.get("repeats", 0) >= earlier.get("repeats", 0):
                rows[named(found)] = found
            document["rows"] = list(rows.values())
            if asked.out:  # a time limit may end this before the last program
                stamp.write(document, asked.out)

    def on_a_free_gpu(programs):
        mine, share = place = free.get()
        os.sched_setaffinity(0, share)  # of this thread and of whatever it starts
        try:
            measured(mine, programs, asked.repeats, asked.seconds, keep)
        finally:
            free.put(place)

    one_at_a_time, free = threading.Lock(), queue.SimpleQueue()
    cpus = os.sched_getaffinity(0)
    for number, share in enumerate(divide_cpus(cpus, asked.gpus, physical_cores(cpus))):
        free.put((dataclasses.replace(device, gpus=device.gpus[number : number + 1]), share))
    with ThreadPoolExecutor(asked.gpus) as pool:
        list(pool.map(on_a_free_gpu, [list(programs) for _, programs in by_task]))
    if asked.out is None:
        stamp.write(document, None)
    stamp.check(document, FIGURES)


if __name__ == "__main__":
    main()

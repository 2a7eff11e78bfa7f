"""The judge's speedup beside the one of a plain process, and whether it repeats.

    python tests/bench/agreement.py [--repeats N] [--seconds N] [--device D] [--out DIR]

Honest programs whose reference takes more than a millisecond on CUDA. Each is judged N times in a
lane; it and the reference are timed once in plain processes of their own with
triton.testing.do_bench (on a CPU, as medians). An interval is right where it holds the median of
all repeats' speedups.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import stamp
from mixture import PASS, PROGRAMS

from pike_hpc.cli.lanes import open_lane
from pike_hpc.evaluate.device import detect, image_digest
from pike_hpc.records import EvalRequest
from pike_hpc.tasks import effective_source, find_task

MODULES = (
    "evaluate/centre.py",
    "evaluate/judge_link.py",
    "evaluate/judge_timing.py",
    "evaluate/judge_verdict.py",
    "evaluate/runner/doorbell.py",
    "evaluate/runner/serve.py",
    "evaluate/statistics.py",
)
WANTED = {
    "cuda": (
        ("level3-pike/43", "softmax", "triton"),
        ("level3-pike/43", "softmax", "inline"),
        ("level3-pike/43", "half", "torch"),
        ("level3-pike/44", "tf32", "torch"),
        ("level3-pike/9", "channels last", "torch"),
    ),
    "cpu": (("level3-pike/1", "tf32", "torch"),),
}
TIMEOUT_S = 600.0
INSIDE = 17 / 20
"""Part of the repeats whose interval must hold the pooled value: what a 95 % interval of 20
repeats gives in 98 of 100 cases."""

_PLAIN = """
import importlib.util, json, statistics, sys, time
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

with torch.no_grad():
    for _ in range(3):
        model(*inputs)
    if device == "cuda":
        from triton.testing import do_bench
        found = do_bench(lambda: model(*inputs), warmup=100, rep=1000, return_mode="median")
    else:
        found = statistics.median(once() for _ in range(300))
print(json.dumps(found))
"""


def plain(task, source, device):
    """Milliseconds of reference and program, each in an ordinary process of its own.

    Not in one: a program may set flags of torch that hold for the reference as well.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, "plain_task.py"), Path(folder, "plain_candidate.py")]
        for path, text in zip(files, (effective_source(task), source), strict=True):
            path.write_text(text, "utf-8")
        ask = [sys.executable, "-c", _PLAIN, str(files[0]), device]
        env = {**os.environ, "TORCH_EXTENSIONS_DIR": folder, "TRITON_CACHE_DIR": folder}
        return [_said(ask, env), _said([*ask, str(files[1])], env)]


def _said(argv, env):
    """The number that a program prints last."""
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, env=env
    )
    if done.returncode:
        raise RuntimeError(f"the plain process failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def judged(lane, request, repeats, until):
    """Timings of so many verdicts, and what went wrong."""
    timings, wrong = [], []
    for _ in range(repeats):
        if time.monotonic() > until:
            break
        result = lane.evaluate(request)
        if result.timing is None:
            wrong.append(f"{result.status}: {result.message}"[:300])
        else:
            timings.append(result.timing)
    return timings, wrong


def row(program, timings, wrong, plain_ms):
    """One line of the table."""
    found = {"task": program.task, "program": program.name, "kind": program.kind, "wrong": wrong}
    found["do_bench_ms"] = [round(ms, 4) for ms in plain_ms]
    found["do_bench_speedup"] = round(plain_ms[0] / plain_ms[1], 4)
    if not timings:
        return found
    speedups = [t.speedup for t in timings]
    pooled = statistics.median(speedups)
    spread = statistics.pstdev(map(math.log, speedups))
    inside = sum(t.ci95[0] <= pooled <= t.ci95[1] for t in timings)
    return {
        **found,
        "repeats": len(timings),
        "reference_ms": round(statistics.median(t.reference_ms for t in timings), 4),
        "candidate_ms": round(statistics.median(t.candidate_ms for t in timings), 4),
        "pooled_speedup": round(pooled, 4),
        "over_do_bench": round(pooled * plain_ms[1] / plain_ms[0], 4),
        "spread_of_repeats": round(spread, 4),
        "half_width": round(
            statistics.median((t.ci95[1] - t.ci95[0]) / (2 * t.speedup) for t in timings), 4
        ),
        "inside": inside,
        "enough_inside": inside >= INSIDE * len(timings),
    }


def main():
    """Run it."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--repeats", type=int, default=20)
    words.add_argument("--seconds", type=float, default=480.0, help="of judging in all (480)")
    words.add_argument("--device", default="auto")
    words.add_argument("--out", type=Path, help="folder for the JSON; stdout without it")
    asked = words.parse_args()
    device = detect(asked.device, visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    wanted = WANTED[device.torch_device]
    chosen = [p for p in PROGRAMS if (p.task, p.name, p.kind) in wanted and p.expected == PASS]
    rows = []
    with open_lane(device, "auto") as lane:
        for program in chosen:
            task = find_task(program.task)
            source = program.make(1)
            request = EvalRequest(
                task=task,
                candidate_source=source,
                device_kind=device.kind,
                image_digest=image_digest(),
                timeout_s=TIMEOUT_S,
            )
            plain_ms = plain(task, source, device.torch_device)
            until = time.monotonic() + asked.seconds / len(chosen)
            timings, wrong = judged(lane, request, asked.repeats, until)
            rows.append(row(program, timings, wrong, plain_ms))
            sys.stderr.write(json.dumps(rows[-1]) + "\n")
    document = {
        **stamp.stamp("agreement", MODULES, device.torch_device),
        "plain": "triton.testing.do_bench" if device.torch_device == "cuda" else "medians",
        "rows": rows,
    }
    stamp.write(document, asked.out)


if __name__ == "__main__":
    main()

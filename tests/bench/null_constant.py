"""The judge's own constant: input in, doorbell, no model, output out, with the judge's own code.

    python tests/bench/null_constant.py [--rounds N] [--device cpu|cuda] [--out DIR]

Runners without a sandbox, started as the lane starts them: a reference's with all connections to
the GPU, and a candidate's with one, as most have. By where buffers lie and by size of the output:
one call a window, and as many as fit one where the judge would have them share it. Microseconds
for each call.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import stamp
import torch

import pike_hpc.evaluate
from pike_hpc.evaluate.alone import START
from pike_hpc.evaluate.judge_bench import Bench
from pike_hpc.evaluate.judge_host import Ending
from pike_hpc.evaluate.judge_link import RunnerLink
from pike_hpc.evaluate.judge_memory import Place, best_place
from pike_hpc.evaluate.judge_secrets import Secrets
from pike_hpc.evaluate.judge_spares import Spares
from pike_hpc.evaluate.judge_truth import WeightsBy
from pike_hpc.evaluate.runner import Op, Source
from pike_hpc.evaluate.wire import RunnerRole
from pike_hpc.records import Task

MODULES = (
    "evaluate/judge_link.py",
    "evaluate/judge_memory.py",
    "evaluate/judge_shared.py",
    "evaluate/runner/doorbell.py",
    "evaluate/runner/protocol.py",
    "evaluate/runner/seal.py",
    "evaluate/runner/serve.py",
)
FIGURES = {
    "": "why_host buffers",
    "buffers.*.*": "reference candidate",
    "buffers.*.*.*": "one_call shared",
    "buffers.*.*.*.*": "calls p50_us p99_us rounds",
}
SIDES = {"4 KB": (16, 64), "4 MB": (1024, 1024), "400 MB": (10240, 10240)}
"""Rows and columns of float32 outputs."""
LARGEST_ON_CPU = "4 MB"
ONE_CONNECTION = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
"""What the lane starts a runner with that has one."""
TIMEOUT_S = 60.0
SOURCE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(ROWS, 1))

    def forward(self, x):
        return x * self.scale


def get_inputs():
    return [torch.randn(1, COLUMNS)]


def get_init_inputs():
    return []
"""
RUNNER = Path(pike_hpc.evaluate.__file__).with_name("runner")


class PlainHost:
    """The judge's host with runners as plain children: no lane, no sandbox, no warden."""

    def __init__(self, folder, device):
        self._folder, self._device, self._places, self._runners = folder, device, 0, {}
        self._quiet, self._other = os.pipe()

    def fileno(self):
        """Never readable: nobody else speaks."""
        return self._quiet

    def place(self):
        """A folder for one socket."""
        self._places += 1
        found = self._folder / f"r{self._places}"
        found.mkdir()
        return found

    def spawn(self, role, address):
        """Start a runner."""
        argv = [sys.executable, "-B", "-u", "-c", START]
        argv += [str(RUNNER), str(address), self._device.type]
        env = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
        env |= ONE_CONNECTION if role.one_connection else {}
        number = len(self._runners) + 1
        self._runners[number] = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL)
        return number

    def owns(self, number, pid):
        """Whether it is the runner."""
        return self._runners[number].pid == pid

    def kill(self, number, grace_s):
        """End it."""
        runner = self._runners[number]
        runner.kill()
        return Ending(status=runner.wait(), tail="")

    def cpu_s(self, number):
        """Not asked for here."""
        return 0.0

    def stop(self, number):
        """Stop it."""
        self._runners[number].send_signal(signal.SIGSTOP)
        return True

    def go(self, number):
        """Let it go on."""
        self._runners[number].send_signal(signal.SIGCONT)
        return True

    def phase(self, name):
        """Nobody listens."""

    def has_ended(self, number):
        """Whether it is gone."""
        return self._runners[number].poll() is not None

    def pump(self):
        """Nothing to sort."""


def summary(times_ms):
    """Median and 99th percentile in microseconds."""
    ordered = sorted(times_ms)
    return {
        "p50_us": round(statistics.median(ordered) * 1e3, 2),
        "p99_us": round(ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] * 1e3, 2),
        "rounds": len(ordered),
    }


def constants(folder, device, place, sides, rounds):
    """Both kinds of window for one size and place, with either runner."""
    rows, columns = sides
    text = SOURCE.replace("ROWS", str(rows)).replace("COLUMNS", str(columns))
    task = Task(suite="bench", id=str(rows), name="null", source=text)
    secrets = Secrets(os.urandom(32))
    host = PlainHost(folder, device)
    bench = Bench(task, Spares(host, {}), device, place, secrets)
    candidate = RunnerLink(host, RunnerRole.NARROW)
    try:
        reference = bench.reference(WeightsBy.STATE, secrets)
        candidate.attach(bench.shared(WeightsBy.STATE), None)
        candidate.allow(TIMEOUT_S)
        candidate.do(Op.IMPORT)
        candidate.do(Op.LOAD, source=Source.STATE)
        rounds = max(20, min(rounds, rounds * (1 << 22) // (rows * columns * 4)))
        links = {"reference": reference, "candidate": candidate}
        return {name: of_link(link, rounds) for name, link in links.items()}
    finally:
        candidate.end()
        bench.close()


def of_link(link, rounds):
    """Both kinds of window with this runner."""
    link.allow(TIMEOUT_S)
    given = link.staged(torch.zeros(link.sizes[0], dtype=torch.uint8))
    found = {}
    link.watch()
    link.windows(Op.CALL, [given], link.spaces(1))  # what is empty gives its last answer again
    for name, calls in (("one_call", 1), ("shared", link.places)):
        answers = link.spaces(calls)
        times = [link.windows(Op.NULL, [given] * calls, answers) for _ in range(rounds + 5)]
        found[name] = {"calls": calls, **summary(times[5:])}
    link.rest()
    return found


def main():
    """Run it."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--rounds", type=int, default=500, help="of small outputs (500)")
    words.add_argument("--device", choices=("cpu", "cuda"))
    words.add_argument("--out", type=Path, help="folder for the JSON; stdout without it")
    asked = words.parse_args()
    device = torch.device(asked.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    best, why = best_place(device)
    places = [Place.HOST] if best is Place.HOST else [Place.DEVICE, Place.HOST]
    names = list(SIDES)
    if device.type == "cpu":
        names = names[: names.index(LARGEST_ON_CPU) + 1]
    table = {}
    with tempfile.TemporaryDirectory(prefix="pike-null-") as folder:
        for place in places:
            for name in names:
                where = Path(folder, f"{place.value}-{name.replace(' ', '')}")
                where.mkdir()
                row = constants(where, device, place, SIDES[name], asked.rounds)
                table.setdefault(place.value, {})[name] = row
    document = {
        **stamp.stamp("null_constant", MODULES, device.type),
        "why_host": why,
        "buffers": table,
    }
    stamp.write(document, asked.out)
    stamp.check(document, FIGURES)


if __name__ == "__main__":
    main()

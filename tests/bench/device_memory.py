"""What sharing GPU memory costs: making, opening, copying, ringing, and a window with no model.

    python tests/bench/device_memory.py [--rounds N] [--simulated]

One JSON table on stdout. Latencies are medians and 99th percentiles in microseconds, rates count
bytes read plus bytes written. Without a GPU, or with --simulated, memory is simulated: only the
doorbells then mean anything. A row `ordinary` beside a row `shared` is the same work on memory of
torch's allocator in the same run.
"""

import argparse
import importlib.util
import json
import mmap
import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import torch

from pike_hpc.evaluate.correctness import compare
from pike_hpc.evaluate.runner import device_memory
from pike_hpc.evaluate.runner.cuda_driver import Driver
from pike_hpc.evaluate.runner.simulated_driver import SimulatedDriver

_spec = importlib.util.spec_from_file_location(
    "device_memory_peer", Path(__file__).resolve().parents[1] / "peers/device_memory_peer.py"
)
peers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(peers)

SCHEMA_VERSION = 1
KB, MB = 1 << 10, 1 << 20
SIZES = {"cuda": (4 * KB, 4 * MB, 400 * MB), "simulated": (4 * KB, 4 * MB)}
BELL, DONE = 0, 64
"""Bytes of the page, in cache lines of their own."""


class Bench:
    """A driver, a device and how often."""

    def __init__(self, kind, rounds):
        self.kind, self.rounds = kind, rounds
        self.driver = SimulatedDriver().driver() if kind == "simulated" else Driver.open()
        self.device = "cuda" if kind == "cuda" else "cpu"

    def wait(self):
        if self.kind == "cuda":
            torch.cuda.synchronize()

    def rounds_for(self, size):
        """Fewer of large ones."""
        return max(20, self.rounds // max(1, size // MB))

    def export(self, size):
        return device_memory.export(size, 0, driver=self.driver)

    def times(self, work, rounds):
        """Seconds of each of `rounds` calls that follow three that don't count."""
        found = []
        for number in range(rounds + 3):
            start = time.perf_counter_ns()
            work()
            if number >= 3:
                found.append((time.perf_counter_ns() - start) / 1e9)
        return found


def summary(seconds):
    """Median and 99th percentile in microseconds."""
    ordered = sorted(seconds)
    tail = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {
        "p50_us": round(statistics.median(ordered) * 1e6, 2),
        "p99_us": round(tail * 1e6, 2),
        "rounds": len(ordered),
    }


def making(bench):
    """export, import and close in turn, beside an ordinary allocation from an empty cache."""
    table = {}
    with peers.Peer(bench.kind) as peer:
        for size in SIZES[bench.kind]:
            exported, imported, closed, ordinary = [], [], [], []
            for _ in range(20):
                start = time.perf_counter()
                buffer = bench.export(size)
                exported.append(time.perf_counter() - start)
                answer = peer.ask("take", [buffer.fd], size=size)
                imported.append(answer["seconds"])
                peer.ask("let_go")
                start = time.perf_counter()
                buffer.close()
                closed.append(time.perf_counter() - start)
                if bench.kind == "cuda":
                    torch.cuda.empty_cache()
                start = time.perf_counter()
                torch.zeros(size, dtype=torch.uint8, device=bench.device)
                bench.wait()
                ordinary.append(time.perf_counter() - start)
            table[str(size)] = {
                "export": summary(exported),
                "import": summary(imported),
                "close": summary(closed),
                "ordinary": summary(ordinary),
            }
    return table


def copying(bench):
    """The judge's two copies, shared or ordinary memory on the other side; and its comparison."""
    table = {}
    for size in SIZES[bench.kind]:
        rounds = bench.rounds_for(size)
        own = torch.zeros(size, dtype=torch.uint8, device=bench.device)
        truth = torch.zeros(size // 4, dtype=torch.float32, device=bench.device)
        other = torch.zeros_like(own)
        row = {}
        with bench.export(size) as buffer:
            for name, there in (("shared", buffer.bytes()), ("ordinary", other)):
                for way, ends in (("in", (own, there)), ("out", (there, own))):
                    found = bench.times(partial(take, *ends), rounds)
                    rate = 2 * size / statistics.median(found) / 1e9
                    row[f"{way}_{name}"] = {**summary(found), "gb_per_s": round(rate, 1)}
            del there
        answer = own.view(torch.float32)
        found = bench.times(partial(compare, answer, truth, 1.0), min(rounds, 50))
        rate = 2 * size / statistics.median(found) / 1e9
        row["compare"] = {**summary(found), "gb_per_s": round(rate, 1)}
        table[str(size)] = row
    return table


def pipe_bell(bench):
    """There and back by two pipes: what a runner uses now."""
    bell_read, bell = os.pipe()
    done, done_write = os.pipe()
    with peers.Peer(bench.kind) as peer:
        peer.ask("hello")
        peer.start("pipe_bell", [bell_read, done_write])
        os.close(bell_read)
        os.close(done_write)

        def ring():
            os.write(bell, b"!")
            os.read(done, 1)

        found = bench.times(ring, bench.rounds)
        os.close(bell)
        peer.answer()
        os.close(done)
    return summary(found)


class Page:
    """A bell and its answer in a memory page that both sides have."""

    def __init__(self):
        self.fd = os.memfd_create("bell", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, mmap.PAGESIZE)
        self._page = mmap.mmap(self.fd, mmap.PAGESIZE)
        self._number = 0

    def ring(self, peer):
        """Ring and spin until it is answered. Raises PeerLost where nobody will."""
        self._number += 1
        wanted = self._number & 0xFF
        spins = 0
        self._page[BELL] = wanted
        while self._page[DONE] != wanted:
            spins += 1
            if not spins & 0xFFFFF and peer.process.poll() is not None:
                peer.answer()

    def close(self):
        """Let go of the page."""
        self._page.close()
        os.close(self.fd)


def page_bell(bench):
    """There and back by two bytes of a shared page, both sides spinning in Python."""
    page = Page()
    with peers.Peer(bench.kind) as peer:
        peer.ask("hello")
        peer.start("page_bell", [page.fd], rounds=bench.rounds + 3)
        found = bench.times(partial(page.ring, peer), bench.rounds)
        peer.answer()
    page.close()
    return summary(found)


def null_window(bench):
    """The constant of the protocol: input in, ring, a copy for a model, done, output out."""
    table = {}
    for size in SIZES[bench.kind]:
        rounds = bench.rounds_for(size)
        page = Page()
        fresh = torch.ones(size, dtype=torch.uint8, device=bench.device)
        own = torch.zeros_like(fresh)
        with (
            bench.export(size) as given,
            bench.export(size) as answer,
            peers.Peer(bench.kind) as peer,
        ):
            for buffer in (given, answer):
                peer.ask("take", [buffer.fd], size=size)
            peer.start("null_model", [page.fd], rounds=rounds + 3)
            shared_in, shared_out = given.bytes(), answer.bytes()

            window = partial(one_window, page, peer, (fresh, shared_in), (shared_out, own))
            found = bench.times(window, rounds)
            peer.answer()
            peer.ask("let_go")
            right = torch.equal(own, fresh)
            del shared_in, shared_out, window
        page.close()
        table[str(size)] = {**summary(found), "right": right}
    return table


def take(shared, own):
    """A copy that is waited for, as the judge makes it inside a window."""
    own.copy_(shared)
    if own.is_cuda:
        torch.cuda.synchronize(own.device)


def one_window(page, peer, copy_in, copy_out):
    """What the judge's clock would see."""
    take(*copy_in)
    page.ring(peer)
    take(*copy_out)


def main():
    """Run all of it."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--rounds", type=int, default=2000, help="of the quick parts (2000)")
    words.add_argument("--simulated", action="store_true", help="no GPU: host memory")
    asked = words.parse_args()
    why_not = "asked for" if asked.simulated else device_memory.supported(0)
    kind = "simulated" if why_not else "cuda"
    bench = Bench(kind, asked.rounds)
    parts = (making, copying, pipe_bell, page_bell, null_window)
    table = {
        "schema_version": SCHEMA_VERSION,
        "memory": kind,
        "why_not_cuda": why_not,
        "device": torch.cuda.get_device_name(0) if kind == "cuda" else "cpu",
        "torch": torch.__version__,
        "cores": len(os.sched_getaffinity(0)),
        **{part.__name__: part(bench) for part in parts},
    }
    json.dump(table, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()

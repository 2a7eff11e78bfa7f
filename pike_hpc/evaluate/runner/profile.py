"""What a few calls of a program do on its device, told to the judge on one sheet of fixed layout.

Made by the process that is profiled, so nothing on the sheet is evidence: it is a hint for the
search and no part of a verdict. Kernels and copies come from Kineto (CUPTI, which traces for
ordinary users), on a CPU operations from the same profiler; where CUPTI gives nothing, the time
on the device comes from CUDA events alone.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import struct
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import profiler as autograd_profiler

MAGIC = b"PIKEPROF"
SHEET_BYTES = 4096
TOP = 5
"""Kernels on a sheet, those that take longest."""
NAME_BYTES = 96

HEAD = struct.Struct("<8sBBB5xddddd")
"""MAGIC, where it comes from, rows, streams; busy ms, launches, copies, ms of copies, graph
replays: each for one call."""
ROW = struct.Struct(f"<{NAME_BYTES}sdd")
"""A kernel's name (UTF-8, filled up with NULs), its part of the kernels' time (on a CPU: of the
call's), launches a call."""

ELSEWHERE = "outside of operations: Python, own code, other threads"
"""What of a call on a CPU no operation of PyTorch took; an extension's kernel, say."""

KERNELS, EVENTS, OPERATIONS = 1, 2, 3
"""Where a sheet comes from: Kineto on a GPU, CUDA events, Kineto on a CPU."""

WARM = 2
"""Calls before: with `reduce-overhead` a fresh model records its graph at the second."""
CALLS, SLOW_S, LONG_S = 3, 0.05, 0.5
"""Calls that are profiled; of a model slower than this only one; from here on one warms it up."""

PAD_S = 0.02
"""Kineto drops kernels that the GPU's clock puts outside the session; the two clocks drift apart
while the GPU is idle (pytorch issue 192021)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """What a sheet says, for one call."""

    source: int
    busy_ms: float = 0.0
    """Time in which the device did anything; 0 on a CPU."""
    launches: float = 0.0
    copies: float = 0.0
    """Copies and fills by the device's own means."""
    copies_ms: float = 0.0
    replays: float = 0.0
    """CUDA graphs launched."""
    streams: int = 0
    """On which there was work, over all calls; 0 where that is not known."""
    rows: tuple[tuple[str, float, float], ...] = ()
    """(name, part of the kernels' time or, on a CPU, of the call's, launches)."""

    def packed(self) -> bytes:
        """The bytes that the judge reads."""
        rows = self.rows[:TOP]
        head = (self.busy_ms, self.launches, self.copies, self.copies_ms, self.replays)
        parts = [HEAD.pack(MAGIC, self.source, len(rows), min(self.streams, 255), *head)]
        for name, share, launches in rows:
            raw = name.encode("utf-8", "replace")[:NAME_BYTES]
            parts.append(ROW.pack(raw, share, launches))
        return b"".join(parts)


def record(
    call: Callable[[], object], restore: Callable[[], bool], device: torch.device, fd: int
) -> None:
    """Profile a few calls and write the sheet.

    Args:
        call: one call of the program on the last input.
        restore: puts back what a call leaves in the model; False where nothing has to be.
        device: where the program runs.
        fd: where the judge reads the sheet.

    Raises:
        Whatever the program raises.
    """
    with _quiet():
        sheet = measure(call, restore, device)
    os.pwrite(fd, sheet.packed(), 0)


def measure(
    call: Callable[[], object],
    restore: Callable[[], bool],
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
) -> Sheet:
    """See `record`. `clock` gives seconds."""
    took_s = math.inf  # the best of them: the first may compile or capture
    for _ in range(WARM):
        restore()
        start = clock()
        call()
        _finish(device)
        took_s = min(took_s, clock() - start)
        if took_s > LONG_S:
            break
    # What restores a model would be profiled too, were it to happen between calls.
    count = 1 if restore() or took_s > SLOW_S else CALLS
    if device.type != "cuda":
        return _operations(call, count, clock)
    return _kernels(call, count, device) or Sheet(
        source=EVENTS, busy_ms=_by_events(call, restore, device, count)
    )


def _operations(call: Callable[[], object], count: int, clock: Callable[[], float]) -> Sheet:
    with autograd_profiler.profile(use_kineto=True) as profiled:
        start = clock()
        for _ in range(count):
            call()
        took_us = (clock() - start) * 1e6
    seen: dict[str, list[float]] = defaultdict(list)
    for event in profiled.function_events:
        if event.device_type.name == "CPU":
            seen[shorten(event.name)].append(event.self_cpu_time_total)
    launches = sum(len(times) for times in seen.values()) / count
    named_us = sum(sum(times) for times in seen.values())
    if took_us > named_us:
        seen[ELSEWHERE] = [(took_us - named_us) / count] * count
    return Sheet(source=OPERATIONS, launches=launches, rows=_rows(seen, count))


def _kernels(call: Callable[[], object], count: int, device: torch.device) -> Sheet | None:
    """What CUPTI saw; None where it saw no work on the device, or doesn't work here."""
    try:
        with autograd_profiler.profile(
            use_cpu=False, use_device="cuda", use_kineto=True
        ) as profiled:
            time.sleep(PAD_S)
            for _ in range(count):
                call()
            _finish(device)
            time.sleep(PAD_S)
    except (RuntimeError, AssertionError):
        return None
    results = profiled.kineto_results
    return summarise(results.events() if results is not None else (), count)


def summarise(events: Iterable[Any], count: int) -> Sheet | None:
    """A sheet from Kineto's events of `count` calls; None where the device did nothing."""
    kernels: dict[str, list[float]] = defaultdict(list)
    spans: list[tuple[int, int]] = []
    copies: list[float] = []
    streams: set[int] = set()
    replays = 0
    for event in events:
        name = event.name()
        if event.device_type().name != "CUDA":
            replays += name.startswith(("cudaGraphLaunch", "cuGraphLaunch"))
        elif not event.is_user_annotation():
            start, took = event.start_ns(), event.duration_ns()
            spans.append((start, start + took))
            streams.add(event.device_resource_id())
            if name.startswith(("Memcpy", "Memset")):
                copies.append(took / 1e6)
            else:
                kernels[shorten(name)].append(took / 1e6)
    if not spans:
        return None
    return Sheet(
        source=KERNELS,
        busy_ms=_union(spans) / 1e6 / count,
        launches=sum(len(times) for times in kernels.values()) / count,
        copies=len(copies) / count,
        copies_ms=sum(copies) / count,
        replays=replays / count,
        streams=len(streams),
        rows=_rows(kernels, count),
    )


def _by_events(
    call: Callable[[], object], restore: Callable[[], bool], device: torch.device, count: int
) -> float:
    """Milliseconds from the first to the last work of a call on the device's own clock."""
    cuda: Any = torch.cuda
    times: list[float] = []
    for _ in range(count):
        restore()
        _finish(device)
        start, end = (cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return min(times)


def _rows(seen: dict[str, list[float]], count: int) -> tuple[tuple[str, float, float], ...]:
    """The longest first."""
    total = sum(sum(times) for times in seen.values()) or 1.0
    ranked = sorted(seen.items(), key=lambda item: (-sum(item[1]), item[0]))[:TOP]
    return tuple((name, sum(times) / total, len(times) / count) for name, times in ranked)


def _union(spans: list[tuple[int, int]]) -> int:
    """The time that at least one span covers."""
    covered = until = 0
    for start, end in sorted(spans):
        covered += max(0, end - max(start, until))
        until = max(until, end)
    return covered


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


_COMPILED = re.compile(r"## Call (\w+) \w+ ##")
"""torch.compile's own code in one entry; what follows is a digest."""
_NAMESPACE = re.compile(r"(?:\(anonymous namespace\)|\w+)::")


def shorten(name: str) -> str:
    """A kernel's name without return type, namespaces and parameters."""
    if (compiled := _COMPILED.fullmatch(name)) is not None:
        return compiled[1]
    name = _NAMESPACE.sub("", name[:2000].removeprefix("void ")) if "(" in name else name
    depth = 0
    for i, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth <= 0 and i > 0:
            return name[:i].strip()
    return name


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Nothing that profiler or program print meanwhile reaches the log."""
    kept = [(fd, os.dup(fd)) for fd in (1, 2)]
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        for fd, _ in kept:
            os.dup2(null, fd)
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # a program may have replaced them
                stream.flush()
        for fd, copy in kept:
            os.dup2(copy, fd)
            os.close(copy)
        os.close(null)

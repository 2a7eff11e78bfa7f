"""`pike-hpc evaluate TASK FILE.py`: judge one program, no queue."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from pike_hpc.cli.candidate_file import read_candidate
from pike_hpc.cli.image import digest_of
from pike_hpc.cli.judging_torch import judging_device, judging_toolchain, require_use
from pike_hpc.cli.lanes import open_lane
from pike_hpc.cli.seconds import seconds
from pike_hpc.cli.signals import sigterm_as_ctrl_c
from pike_hpc.cli.stock import Stock, StockVerdicts
from pike_hpc.cli.tasks import add_task_options, task_from
from pike_hpc.cli.terminal import is_live
from pike_hpc.config import env
from pike_hpc.evaluate.device import Device, image_digest
from pike_hpc.evaluate.lane import Lane
from pike_hpc.records import (
    EvalRequest,
    EvalResult,
    EvalStatus,
    Task,
    encode,
)


def add_evaluate(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("task", metavar="TASK", help="SUITE/ID, or a file in KernelBench's format")
    parser.add_argument("file", metavar="FILE.py", type=Path, help="defines ModelNew (or Model)")
    add_judging_options(parser)
    parser.add_argument(
        "--stock",
        action="store_true",
        help="judge torch's own settings too, those that were not judged here before",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    add_task_options(parser)
    parser.set_defaults(run=run)


def add_judging_options(parser: argparse.ArgumentParser) -> None:
    """Where and how strictly a program is judged; shared by every command that judges one."""
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or a GPU's model")
    parser.add_argument("--engine", default="auto", help="isolation: auto, bubblewrap, unshare, …")
    parser.add_argument("--image", metavar="IMAGE", help="of apptainer (a file), podman, …")
    parser.add_argument("--min-isolation", default="L1", help="L0 to L4; below it is a refusal")
    parser.add_argument(
        "--timeout-s", type=seconds, default=900.0, metavar="S", help="for each evaluation"
    )


def device_from(options: argparse.Namespace) -> Device:
    """The device that the options name. Raises UsageError."""
    require_use(options.engine, options.image)
    return judging_device(options.device, options.engine, options.image)


def request_from(
    options: argparse.Namespace, task: Task, source: str, device: Device
) -> EvalRequest:
    """What the lane is asked. Raises ValueError where task and candidate are too large."""
    return EvalRequest(
        task=task,
        candidate_source=source,
        device_kind=device.kind,
        image_digest=digest_of(options.engine, options.image) or image_digest(),
        min_isolation=options.min_isolation,
        timeout_s=options.timeout_s,
    )


def run(options: argparse.Namespace) -> int:
    """Judge and print; 0 passed, 3 the candidate failed, 1 the judge could not decide."""
    task = task_from(options)
    source = read_candidate(options.file)
    device = device_from(options)
    request = request_from(options, task, source, device)
    print(f"judging {options.file} for {task.key} {task.name} on {device.why}", file=sys.stderr)
    kept = StockVerdicts(toolchain=judging_toolchain(options.engine, options.image))
    show = _show_phase if is_live(sys.stderr, env.environ()) else None
    with sigterm_as_ctrl_c(), open_lane(device, options.engine, image=options.image) as lane:
        result = lane.evaluate(request, on_phase=show)
        stock = kept.look(task, device.kind, result.environment)
        if options.stock and result.timing is not None:
            measure(lane, stock, request, kept, sys.stderr)
            stock = kept.look(task, device.kind, result.environment)
    result = stock.beside(result)
    if options.json:
        whole = document(task, result) | {"stock": stock.document(result)}
        print(json.dumps(whole, indent=2, sort_keys=False, allow_nan=False))
    else:
        print(describe(task, result, device))
        print("\n".join(stock.lines(result)))
    return exit_code(result.status)


def measure(
    lane: Lane, stock: Stock, request: EvalRequest, kept: StockVerdicts, log: TextIO
) -> None:
    """Judge and keep the stock settings of the request's task that have no verdict yet."""
    for number, entry in enumerate(stock.missing, 1):
        print(f"[{number}/{len(stock.missing)}] stock: {entry.setting} … ", end="", file=log)
        log.flush()
        result = lane.evaluate(replace(request, candidate_source=entry.source or ""))
        kept.keep(result)
        timing = result.timing
        said = f"{timing.speedup:.2f}x at {result.tier}" if timing else str(result.status)
        print(said, file=log, flush=True)


def exit_code(status: EvalStatus) -> int:
    """0 passed, 1 no verdict, 3 the candidate failed."""
    if status is EvalStatus.PASSED:
        return 0
    return 3 if status.decides else 1


TAGS = {
    "weights_by_seed": "its weights could not be placed, and were made from a seed; see prepare",
    "caches_weights": "it keeps something of its first weights: load others into a fresh model",
    "early_stop": "it was not timed to the end, being no faster",
    "nondeterministic": "the same input gives other bits, within the tier",
    "aliased_output": "an answer changes when the model is called again: clone it to keep it",
    "narrow_range": "it is lost at inputs beyond the task's own",
    "noisy": "others were at work, or clocks went down, while it was timed: time it again",
    "uneven": "some of its calls are slow; it is as fast as their mean",
    "legacy": "judged with PIKE's own seeds, weights and tolerance",
}
"""What the tags of docs/evaluator.md mean, in half a sentence."""


def document(task: Task, result: EvalResult) -> dict[str, Any]:
    """What `evaluate --json` prints."""
    whole = encode(result)
    return {
        "schema_version": 1,
        "task": task.key,
        "name": task.name,
        "variant": task.variant.value,
        "candidate": result.candidate_id,
        "device_kind": result.key.device_kind,
        "judge_version": result.key.judge_version,
        **{
            key: whole[key]
            for key in (
                "status",
                "tier",
                "tags",
                "correctness",
                "timing",
                "one_off",
                "isolation",
                "message",
                "log_tail",
                "environment",
            )
        },
        "profile": list(result.profile_lines),
    }


def describe(task: Task, result: EvalResult, device: Device) -> str:
    """The same for a person."""
    lines = [f"{task.key} {task.name} · {device.kind} · candidate {result.candidate_id[:12]}"]
    timing, correctness = result.timing, result.correctness
    if timing is not None and result.tier is not None:
        low, high = timing.ci95
        drifted = not low <= timing.reference_ms / timing.candidate_ms <= high
        lines += [
            f"PASSED  {timing.speedup:.2f}x over eager (95 % interval {low:.2f} to {high:.2f}), "
            f"tier {result.tier}",
            f"  time       {timing.candidate_ms:.4g} ms, eager {timing.reference_ms:.4g} ms: "
            f"medians of all {timing.windows} windows; the speedup compares neighbouring ones"
            f"{'. These drifted: go by the speedup' if drifted else ''}",
        ]
    else:
        lines += [f"{result.status}  {result.message}"]
    if correctness is not None:
        lines += [
            f"  error      {correctness.relative_error:.2g} of the signal "
            f"(limit {correctness.limit:.2g}), {correctness.seeds} secret seeds against "
            f"{correctness.reference_precision}"
        ]
    once = result.one_off
    lines += [
        f"  one-off    build {once.build_s:.1f} s, load {once.load_s:.1f} s, "
        f"first call {once.first_call_s:.1f} s",
        f"  isolation  {result.isolation.level} ({result.isolation.engine})",
    ]
    for i, line in enumerate(result.profile_lines):
        lines += [f"  {'' if i else 'profile':9}  {line}"]
    for i, tag in enumerate(result.tags):
        lines += [f"  {'' if i else 'tags':9}  {tag}: {TAGS[tag]}"]
    if result.log_tail and timing is None:
        lines += ["  what it printed last:"]
        lines += [f"    | {line}" for line in result.log_tail.splitlines()[-15:]]
    return "\n".join(lines)


def _show_phase(phase: str) -> None:
    print(f"\r\x1b[K  {phase}", end="" if phase != "done" else "\r\x1b[K", file=sys.stderr)
    sys.stderr.flush()

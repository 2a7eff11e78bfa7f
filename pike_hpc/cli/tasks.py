"""`pike-hpc tasks list|show|check`: suites, one task, admission."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pike_hpc.cli.lanes import open_lane
from pike_hpc.cli.signals import sigterm_as_ctrl_c
from pike_hpc.config import env
from pike_hpc.evaluate import Admission
from pike_hpc.evaluate.device import detect
from pike_hpc.records import Task, UsageError, Variant, encode
from pike_hpc.tasks import find_task, load_suite, suites


def add_task_options(parser: argparse.ArgumentParser) -> None:
    """How a TASK is found; shared by every command that takes one."""
    parser.add_argument("--tasks-root", type=Path, metavar="DIR", help="folder of task files")
    parser.add_argument(
        "--variant", choices=[v.value for v in Variant], default="admitted", help="default admitted"
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=N",
        help="replace a module-level integer of the task, such as batch_size=2; repeatable",
    )


def task_from(options: argparse.Namespace) -> Task:
    """The task that the options name. Raises UsageError."""
    return find_task(
        options.task,
        tasks_root=options.tasks_root,
        variant=Variant(options.variant),
        shape_overrides=dict(_shape(text) for text in options.shape),
    )


def add_tasks(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("action", choices=["list", "show", "check"])
    parser.add_argument("task", nargs="?", metavar="SUITE[/ID]", help="default: every suite")
    parser.add_argument("--device", default="auto", help="where `check` runs the models")
    parser.add_argument("--engine", default="auto", help="isolation of `check`")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    add_task_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """List and show need no torch; check does."""
    if options.action == "show":
        return _show(options)
    return _list(options) if options.action == "list" else _check(options)


def _selected(options: argparse.Namespace) -> tuple[list[Task], list[tuple[Path, str]]]:
    if options.task and ("/" in options.task and not Path(options.task).is_dir()):
        return [task_from(options)], []
    names = (options.task,) if options.task else suites(options.tasks_root)
    loaded = [load_suite(name, tasks_root=options.tasks_root) for name in names]
    tasks = [task for suite in loaded for task in suite.tasks]
    return tasks, [refusal for suite in loaded for refusal in suite.refused]


def _list(options: argparse.Namespace) -> int:
    tasks, refused = _selected(options)
    if options.json:
        print(json.dumps({"schema_version": 1, "tasks": [_row(t) for t in tasks]}, indent=2))
    else:
        for task in tasks:
            print(f"{task.key:<28} {task.name}")
    _name_refused(refused)
    return 3 if refused and tasks else 2 if refused else 0


def _row(task: Task, admitted: bool | None = None) -> dict[str, Any]:
    return {
        "task": task.key,
        "suite": task.suite,
        "id": task.id,
        "name": task.name,
        "variants": [v.value for v in Variant],
        "admitted": admitted,
    }


def _show(options: argparse.Namespace) -> int:
    if not options.task:
        raise UsageError("tasks show needs a TASK", valid="SUITE/ID or a file, as `level3-pike/4`")
    task = task_from(options)
    if options.json:
        row = _row(task) | {"digest": task.digest, "source": task.source}
        print(json.dumps({"schema_version": 1, **row}, indent=2))
    else:
        print(f"# {task.key} {task.name}\n# digest {task.digest}\n{task.source}", end="")
    return 0


def _check(options: argparse.Namespace) -> int:
    tasks, refused = _selected(options)
    device = detect(options.device, visible=env.environ().get("CUDA_VISIBLE_DEVICES"))
    print(f"checking {len(tasks)} tasks on {device.why}", file=sys.stderr)
    rows = []
    with sigterm_as_ctrl_c(), open_lane(device, options.engine) as lane:
        for task in tasks:
            admission = lane.admit(task)
            rows.append(_row(task, admission.admitted) | encode(admission))
            if not options.json:
                print(f"{task.key:<20} {task.name:<28} {_summary(admission)}", flush=True)
    if options.json:
        print(json.dumps({"schema_version": 1, "tasks": rows}, indent=2, allow_nan=False))
    _name_refused(refused)
    return 0 if all(row["admitted"] for row in rows) and not refused else 3


def _summary(admission: Admission) -> str:
    if not admission.admitted:
        return f"refused: {admission.reason}"
    mildest = min(admission.mutants.values(), default=float("inf"))
    return (
        f"admitted at {', '.join(admission.limits)}; signal {admission.signal:.2g}, "
        f"noise {admission.noise:.1g}, mildest mutant {mildest:.2g}"
    )


def _name_refused(refused: list[tuple[Path, str]]) -> None:
    for path, reason in refused:
        print(f"refused {path}: {reason}", file=sys.stderr)


def _shape(text: str) -> tuple[str, int]:
    name, equals, value = text.partition("=")
    try:
        if not equals or int(value) < 1:
            raise ValueError
        return name, int(value)
    except ValueError:
        raise UsageError(
            f"--shape {text!r} is not NAME=N", valid="a name and a positive integer: batch_size=2"
        ) from None

"""`pike-hpc tasks list|show|check|table`: suites, one task, admission, admission's table."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path
from typing import Any

from pike_hpc.cli.judging_torch import judging_device, judging_torch, require_use
from pike_hpc.cli.tasks_check import Row, check, document, exit_code, refusals, row
from pike_hpc.cli.tasks_table import as_markdown, as_text
from pike_hpc.evaluate.device import Device
from pike_hpc.evaluate.screen import printable
from pike_hpc.records import Task, UsageError, Variant
from pike_hpc.tasks import Chosen, choose, effective_source, find_task


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
    parser.add_argument("action", choices=list(_ACTIONS))
    parser.add_argument(
        "task",
        nargs="?",
        metavar="SUITE[/RANGE]",
        help="a suite, some of it (level3-pike/1-10,17), a folder or a file; default: every "
        "suite. `table` takes the JSON of a check and prints it in markdown",
    )
    parser.add_argument("--device", default="auto", help="where `check` runs the models")
    parser.add_argument("--engine", default="auto", help="isolation of `check`")
    parser.add_argument("--image", metavar="IMAGE", help="of an engine that runs one")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    add_task_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Only check needs torch."""
    return _ACTIONS[options.action](options)


def chosen_from(options: argparse.Namespace) -> Chosen:
    """The tasks that the options name. Raises UsageError."""
    return choose(
        options.task,
        tasks_root=options.tasks_root,
        variant=Variant(options.variant),
        shape_overrides=dict(_shape(text) for text in options.shape),
    )


def _list(options: argparse.Namespace) -> int:
    chosen = chosen_from(options)
    if options.json:
        listed = [row(task) for task in chosen.tasks]
        _print_json({"tasks": listed, "refused": refusals(chosen.refused)})
    else:
        width = max((len(printable(task.key)) for task in chosen.tasks), default=0)
        for task in chosen.tasks:
            print(f"{printable(task.key):<{width}}  {printable(task.name)}")
    _name_refused(chosen)
    return 3 if chosen.refused else 0


def _show(options: argparse.Namespace) -> int:
    if not options.task:
        raise UsageError("tasks show needs a TASK", valid="SUITE/ID or a file, as `level3-pike/4`")
    task = task_from(options)
    source = effective_source(task)
    if options.json:
        overrides = dict(task.shape_overrides)
        more = {"digest": task.digest, "shape_overrides": overrides, "source": source}
        _print_json(row(task) | more)
    else:
        head = f"{task.key} {task.name}"
        print(f"# {printable(head)}\n# digest {task.digest}\n{source}", end="")
    return 0


def _check(options: argparse.Namespace) -> int:
    chosen = chosen_from(options)
    require_use(options.engine, options.image)
    device = judging_device(options.device, options.engine, options.image)
    print(f"checking {len(chosen.tasks)} tasks on {device.why}", file=sys.stderr)
    rows: list[Row] = []
    try:
        check(chosen, device, options.engine, sys.stderr, rows, image=options.image)
    except KeyboardInterrupt:
        _print_check(options, chosen, device, rows)  # minutes of work, and true as far as it goes
        raise
    _print_check(options, chosen, device, rows)
    return exit_code(rows, chosen.refused)


def _print_check(
    options: argparse.Namespace, chosen: Chosen, device: Device, rows: list[Row]
) -> None:
    if options.json:
        now = datetime.datetime.now(datetime.UTC)
        torch = judging_torch(options.engine, options.image)
        _print_json(document(rows, chosen, device, options.arguments, now, torch))
        _name_refused(chosen)
    else:
        print(as_text(rows, refusals(chosen.refused), len(chosen.tasks)))


def _table(options: argparse.Namespace) -> int:
    if not options.task:
        raise UsageError("tasks table needs a FILE", valid="what `tasks check --json` printed")
    path = Path(options.task)
    try:
        print(as_markdown(json.loads(path.read_text("utf-8"))), end="")
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"this is no table of tasks: {type(error).__name__}: {error}",
            where=str(path),
            valid="what `pike-hpc tasks check --json` printed",
        ) from None
    return 0


_ACTIONS = {"list": _list, "show": _show, "check": _check, "table": _table}


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps({"schema_version": 1, **content}, indent=2, allow_nan=False))


def _name_refused(chosen: Chosen) -> None:
    for path, reason in chosen.refused:
        print(f"refused {printable(str(path))}: {printable(reason)}", file=sys.stderr)


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

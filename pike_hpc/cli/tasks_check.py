"""`pike-hpc tasks check`: can each task tell right from wrong here, and how finely?

One judge for all of them; one that a task kills or hangs is replaced and the task refused.
"""

from __future__ import annotations

import datetime
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from pike_hpc.cli.lanes import open_lane
from pike_hpc.cli.signals import sigterm_as_ctrl_c
from pike_hpc.cli.tasks_table import verdict
from pike_hpc.evaluate.admission import Admission
from pike_hpc.evaluate.crew import JudgeLost
from pike_hpc.evaluate.device import Device
from pike_hpc.evaluate.lane import Lane
from pike_hpc.evaluate.measured import code_digest
from pike_hpc.evaluate.screen import printable
from pike_hpc.records import CodecError, Task, Variant, encode
from pike_hpc.tasks import Chosen

Row = dict[str, Any]
"""One task of `tasks … --json`."""


def check(
    chosen: Chosen,
    device: Device,
    engine: str,
    log: TextIO,
    rows: list[Row],
    *,
    image: str | None = None,
) -> None:
    """Add a row per task, in order, as each is found; progress goes to `log`.

    Raises:
        UsageError: no torch here, or the engine does not work here.
    """
    small = small_only(chosen, device)
    total = len(chosen.tasks)
    with sigterm_as_ctrl_c(), open_lane(device, engine, image=image) as lane:
        for number, task in enumerate(chosen.tasks, 1):
            name = printable(f"{task.key} {task.name}")
            print(f"[{number}/{total}] {name} … ", end="", file=log, flush=True)
            start = time.monotonic()
            found = row(task, admit(lane, task, small))
            rows.append(found)
            print(f"{verdict(found)}, {time.monotonic() - start:.1f} s", file=log, flush=True)


def small_only(chosen: Chosen, device: Device) -> bool:
    """Whether to leave out what would take minutes: on a CPU, unless one task was named alone."""
    return device.torch_device == "cpu" and not chosen.single


def admit(lane: Lane, task: Task, small: bool) -> Admission:
    """What the lane's judge says; a judge lost to the task is a refusal."""
    try:
        return lane.admit(task, small_only=small)
    except (JudgeLost, CodecError) as error:
        reason = printable(str(error), 400)
        return Admission(task_digest=task.digest, admitted=False, reason=reason)


def row(task: Task, admission: Admission | None = None) -> Row:
    """What the JSON says of one task; `admitted` is null until it was checked."""
    listed: Row = {
        "task": task.key,
        "suite": task.suite,
        "id": task.id,
        "name": task.name,
        "variants": [v.value for v in Variant],
        "admitted": None,
    }
    if admission is None:
        return listed
    asked = {"variant": task.variant.value, "shape_overrides": dict(task.shape_overrides)}
    found: Row = encode(admission)
    return listed | asked | found


def document(
    rows: Sequence[Row],
    chosen: Chosen,
    device: Device,
    arguments: Sequence[str],
    now: datetime.datetime,
    torch: str | None,
) -> dict[str, Any]:
    """What `tasks check --json` prints: the rows, and what they were measured with."""
    return {
        "schema_version": 1,
        "command": shlex.join(["pike-hpc", *arguments]),
        "date": now.isoformat(timespec="seconds"),
        "device": {"kind": device.kind, "description": device.why},
        "torch": torch,
        "code_digest": code_digest(),
        "complete": len(rows) == len(chosen.tasks),
        "refused": refusals(chosen.refused),
        "tasks": list(rows),
    }


def refusals(refused: Sequence[tuple[Path, str]]) -> list[dict[str, str]]:
    """Files that are no task, for the JSON."""
    return [{"path": str(path), "reason": reason} for path, reason in refused]


def exit_code(rows: Sequence[Row], refused: Sequence[tuple[Path, str]]) -> int:
    """3 where a task or a file was refused; what was not tried here does not count."""
    return 3 if refused or any(found["admitted"] is False for found in rows) else 0

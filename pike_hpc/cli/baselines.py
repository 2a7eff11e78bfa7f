"""`pike-hpc baselines SUITE`: stock settings and folders of solutions, in all lanes of a device.

What a search must beat: eager, fp32 without TF32, torch.compile's modes, half precision, TensorRT,
and what others have published; each judged like any candidate. Verdicts on settings are kept, so
that `evaluate` can hold a program against them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from pike_hpc.cli.baselines_plan import MODES, Entry, parse_modes, plan
from pike_hpc.cli.baselines_table import Row, as_text, document, exit_code, row, said
from pike_hpc.cli.evaluate import add_judging_options, device_from, request_from
from pike_hpc.cli.judging_progress import Progress, ToldJudge
from pike_hpc.cli.judging_torch import judging_toolchain, judging_torch
from pike_hpc.cli.lanes import open_judges
from pike_hpc.cli.signals import sigterm_as_ctrl_c
from pike_hpc.cli.solutions import Matched, match_folder
from pike_hpc.cli.stock import StockVerdicts
from pike_hpc.cli.tasks import add_task_options, chosen_from
from pike_hpc.evaluate.device import Device
from pike_hpc.evaluate.screen import printable
from pike_hpc.mailbox import MemoryMailbox
from pike_hpc.records import EvalRequest, EvalResult
from pike_hpc.tasks import Chosen
from pike_hpc.worker import Stop, WorkerOptions, run_worker

_IDLE_S = 0.1
"""When nothing is waiting for so long, all is judged."""


def add_baselines(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "task", metavar="SUITE[/RANGE]", help="a suite, some of it, a folder or a file of tasks"
    )
    parser.add_argument(
        "--modes",
        default="all",
        metavar="MODE,…",
        help=f"all (default), none, or some of {', '.join(MODES)}",
    )
    parser.add_argument(
        "--solutions",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="also judge the programs below this folder: task_4.py, 4_LeNet5.py, …; repeatable",
    )
    add_judging_options(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    add_task_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Judge all and print the table; 3 where something failed, 1 where nothing got a verdict."""
    modes = parse_modes(options.modes, folders=bool(options.solutions))
    chosen = chosen_from(options)
    folders = [match_folder(folder, chosen.tasks) for folder in options.solutions]
    device = device_from(options)
    toolchain = judging_toolchain(options.engine, options.image)
    entries = plan(chosen.tasks, modes, folders, toolchain=toolchain, device_kind=device.kind)
    _announce(chosen, folders, entries, device)
    rows: list[Row] = []
    try:
        judge_all(entries, options, device, sys.stderr, rows)
    except BaseException:
        if rows:  # minutes of work, and true as far as it goes
            _print(options, device, entries, rows, chosen, folders)
        raise
    _print(options, device, entries, rows, chosen, folders)
    return exit_code(rows)


def judge_all(
    entries: Sequence[Entry],
    options: argparse.Namespace,
    device: Device,
    log: TextIO,
    rows: list[Row],
) -> None:
    """Judge in all lanes of the device, as a worker does; progress goes to `log`.

    Rows are added in the order of `entries`, in the end: what was judged by then has one, also
    where this is ended before that.

    Raises:
        UsageError: no torch here, or the engine does not work here.
        TryAgainLater: other processes judge on every GPU.
    """
    requests, declined = _requests(entries, options, device)
    mailbox = MemoryMailbox()
    for request in requests.values():
        mailbox.put(request)
    progress = Progress(log, len(entries))
    for entry in declined.values():
        progress.end(progress.begin(entry), said(row(entry)))
    judged = {request.request_id: entries[number] for number, request in requests.items()}
    kept = StockVerdicts(toolchain=judging_toolchain(options.engine, options.image))
    verdicts: dict[str, EvalResult] = {}

    def keep(result: EvalResult) -> None:
        verdicts[result.request_id] = result
        if judged[result.request_id].file is None:
            kept.keep(result)

    settings = WorkerOptions(worker_id="baselines", max_idle_s=_IDLE_S, expected_s=0.0)
    with sigterm_as_ctrl_c(), open_judges(device, options.engine, image=options.image) as judges:
        progress.alone = len(judges) == 1
        told = [ToldJudge(judge, progress, judged, keep) for judge in judges]
        try:
            run_worker(mailbox, told, settings, preparer=judges[0], stop=Stop())
        finally:
            # Of a judge that was lost the worker speaks; what it had no time to commit we have.
            verdicts = {**mailbox.results(list(judged)), **verdicts}
            for number, entry in enumerate(entries):
                if number in declined:
                    rows.append(row(declined[number]))
                elif result := verdicts.get(requests[number].request_id):
                    if entry.file is not None:
                        stock = kept.look(entry.task, device.kind, result.environment)
                        result = stock.beside(result)
                    rows.append(row(entry, result))


def _requests(
    entries: Sequence[Entry], options: argparse.Namespace, device: Device
) -> tuple[dict[int, EvalRequest], dict[int, Entry]]:
    """What to ask, and what can't be asked and says why, by the place in `entries`."""
    requests, declined = {}, {}
    for number, entry in enumerate(entries):
        if entry.source is None:
            declined[number] = entry
            continue
        try:
            requests[number] = request_from(options, entry.task, entry.source, device)
        except ValueError as error:  # too large beside its task
            declined[number] = entry.refused(str(error))
    return requests, declined


def _announce(
    chosen: Chosen, folders: Sequence[Matched], entries: Sequence[Entry], device: Device
) -> None:
    lines = [f"refused {path}: {reason}" for path, reason in chosen.refused]
    for folder in folders:
        lines += [f"not judged {path}: {reason}" for path, reason in folder.unmatched]
    lines.append(f"judging {len(entries)} programs for {len(chosen.tasks)} tasks on {device.why}")
    for line in lines:
        print(printable(line, 500), file=sys.stderr)


def _print(
    options: argparse.Namespace,
    device: Device,
    entries: Sequence[Entry],
    rows: Sequence[Row],
    chosen: Chosen,
    folders: Sequence[Matched],
) -> None:
    if not options.json:
        print(as_text(rows, len(entries)))
        return
    unmatched = [each for folder in folders for each in folder.unmatched]
    now = datetime.datetime.now(datetime.UTC)
    torch = judging_torch(options.engine, options.image)
    whole = document(rows, len(entries), device, options.arguments, now, torch)
    whole["refused"] = [{"path": str(p), "reason": r} for p, r in chosen.refused]
    whole["unmatched"] = [{"path": str(p), "reason": r} for p, r in unmatched]
    print(json.dumps(whole, indent=2, allow_nan=False))

"""`pike-hpc report RUN…`: tables and figures from archives."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pike_hpc.analysis import (
    Report,
    build_report,
    render_table,
    report_json,
    write_html,
    write_tables,
)
from pike_hpc.archive import is_current, rebuild
from pike_hpc.cli.archive import archive_of
from pike_hpc.config import env
from pike_hpc.journal import task_slugs
from pike_hpc.records import PikeError, UsageError


def add_report(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder or archive")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--html", type=Path, metavar="FILE", help="default: report.html in the run")
    parser.add_argument("--out", type=Path, metavar="DIR", help="tables, figures, winners' code")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Bring archives up to date where a journal is newer, then report over all of them."""
    for path in options.runs:
        if (path / "journal").is_dir() or (path / "run.yaml").is_file():
            _bring_up_to_date(path)
    report = build_report([archive_of(path) for path in options.runs])
    if options.json:
        print(report_json(report))
    else:
        colour = sys.stdout.isatty() and not env.no_color(env.environ())
        print(render_table(report, width=100, color=colour))
    sys.stdout.flush()
    _write_page(report, options)
    if options.out is not None:
        write_tables(report, options.out)
        _say(f"tables, figures and winners' code: {options.out}")
    return 0


def _bring_up_to_date(folder: Path) -> None:
    """Build the archive where there is none, or one that is older than the journal."""
    archive, begun = folder / "archive.h5", bool(task_slugs(folder))
    if not archive.exists():
        if not begun:
            raise UsageError(
                "nothing is judged yet", where=str(folder), fix=f"pike-hpc resume {folder}"
            )
        rebuild(folder)
    elif not begun:
        _say(f"there is no journal in {folder}: this is what {archive} holds, as it was built")
    elif not is_current(folder):
        if os.access(folder, os.W_OK):
            rebuild(folder)
        else:
            _say(f"{folder} is not yours to write: this is what its archive holds, which is older")


def _write_page(report: Report, options: argparse.Namespace) -> None:
    """The page that was asked for, or the one of a run's folder where that takes it."""
    only = options.runs[0] if len(options.runs) == 1 else None
    page = options.html or (only / "report.html" if only is not None and only.is_dir() else None)
    if page is None:
        return
    try:
        write_html(report, page)
    except PikeError as error:
        if options.html is not None:
            raise
        _say(f"no page: {error}".replace("name another file or folder", "name one: --html FILE"))
        return
    _say(f"page: {page}")


def _say(line: str) -> None:
    print(line, file=sys.stderr)

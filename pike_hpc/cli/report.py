"""`pike-hpc report RUN…`: tables and figures from archives."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pike_hpc.analysis import build_report, render_table, report_json, write_html, write_tables
from pike_hpc.archive import is_current, rebuild
from pike_hpc.cli.archive import archive_of
from pike_hpc.config import env


def add_report(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder or archive")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--html", type=Path, metavar="FILE", help="default: report.html in the run")
    parser.add_argument("--out", type=Path, metavar="DIR", help="tables and figures as files")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Bring archives up to date where a journal is newer, then report over all of them."""
    for folder in (path for path in options.runs if (path / "journal").is_dir()):
        if not (folder / "archive.h5").exists() or not is_current(folder):
            rebuild(folder)
    report = build_report([archive_of(path) for path in options.runs])
    page = options.html
    if page is None and len(options.runs) == 1 and options.runs[0].is_dir():
        page = options.runs[0] / "report.html"
    if page is not None:
        write_html(report, page)
        print(f"page: {page}", file=sys.stderr)
    if options.out is not None:
        write_tables(report, options.out)
        print(f"tables and figures: {options.out}", file=sys.stderr)
    if options.json:
        print(report_json(report))
    else:
        colour = sys.stdout.isatty() and not env.no_color(env.environ())
        print(render_table(report, width=100, color=colour))
    return 0

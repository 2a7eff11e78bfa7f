"""From archive files to a report, and from a report to files.

Contract: a file is either written whole under its name or not at all. Beside parquet.py
the only module here that touches the disk.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from pike_hpc import archive
from pike_hpc.analysis import frames
from pike_hpc.analysis.group_figures import group_figures
from pike_hpc.analysis.history import from_archive
from pike_hpc.analysis.page import page
from pike_hpc.analysis.report import Report, build
from pike_hpc.analysis.text import visible
from pike_hpc.analysis.winners import winners
from pike_hpc.records import PikeError, UsageError

ARCHIVE_NAME = "archive.h5"


def build_report(paths: Sequence[Path]) -> Report:
    """The report over archives: files, or run folders that hold one.

    Raises:
        UsageError: a path holds no archive, or what it holds cannot be read.
    """
    if not paths:
        raise UsageError("no run was given to report on", valid="one or more run folders")
    return build([from_archive(archive.read(_archive(path)), str(path)) for path in paths])


def write_html(report: Report, path: Path) -> None:
    """The page as one file. Raises PikeError where it cannot be written."""
    _write(path, page(report))


def write_tables(report: Report, out_dir: Path) -> tuple[Path, ...]:
    """Every table as CSV, every figure as SVG, and what won under winners/; the paths, sorted."""
    texts = {f"{name}.csv": _csv(frame) for name, frame in frames.all_frames(report).items()}
    for number, group in enumerate(report.groups):
        suffix = "" if len(report.groups) == 1 else f"_{number}"
        texts |= {f"{n}{suffix}.svg": svg for n, svg in group_figures(group).items()}
    files = winners(report)
    texts |= {f"winners/{file.name}": file.source for file in files}
    texts["winners/winners.csv"] = _csv(pd.DataFrame([file.row for file in files]))
    for name, text in texts.items():
        _write(out_dir / name, text)
    return tuple(sorted(out_dir / name for name in texts))


def _archive(path: Path) -> Path:
    found = path / ARCHIVE_NAME if path.is_dir() else path
    if found.is_file():
        return found
    fix = f"pike-hpc archive rebuild {path}" if path.is_dir() else None
    raise UsageError(
        "no archive here", where=str(found), valid="a run folder or its archive", fix=fix
    )


def _csv(frame: pd.DataFrame) -> str:
    return frame.map(_cell).to_csv(index=False, lineterminator="\n")


def _cell(value: object) -> object:
    return archive.disarmed(visible(value)) if isinstance(value, str) else value


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        draft = Path(name)
        try:
            # A program may hold halves of surrogates.
            with os.fdopen(fd, "w", -1, "utf-8", "surrogatepass", newline="\n") as file:
                file.write(text)
            draft.chmod(0o644)
            draft.replace(path)
        except BaseException:
            draft.unlink()
            raise
    except OSError as error:
        what = f"cannot write: {error.strerror}"
        raise PikeError(what, where=str(path), fix="name another file or folder") from None

"""`pike-hpc archive verify|rebuild|export`: the product of a run, checked and carried over."""

from __future__ import annotations

import argparse
from pathlib import Path

from pike_hpc.archive import canonical, export_csv, export_pike_layout, rebuild, verify
from pike_hpc.records import UsageError


def add_archive(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("action", choices=["verify", "rebuild", "export"])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="archive.h5 or RUN")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--canonical", action="store_true", help="text without clocks, hosts, times")
    kind.add_argument("--csv", type=Path, metavar="DIR", help="tables as csv")
    kind.add_argument(
        "--parquet", type=Path, metavar="DIR", help="the same as parquet; wants pyarrow"
    )
    kind.add_argument("--pike", type=Path, metavar="DIR", help="PIKE's folder layout")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Do it to every file named; 1 if one has problems."""
    problems = 0
    _check_places(options)
    for path in options.files:
        match options.action:
            case "rebuild":
                print(rebuild(_run_dir(path)))
            case "verify":
                archive = archive_of(path)
                found = verify(archive)
                problems += len(found)
                print("\n".join(f"{archive}: {p}" for p in found) or f"{archive}: sound")
            case "export":
                _export(archive_of(path), options)
    return 1 if problems else 0


def _check_places(options: argparse.Namespace) -> None:
    """Raises UsageError where one archive's files would replace another's."""
    folder = options.csv or options.parquet or options.pike
    if options.action == "export" and folder and len(options.files) > 1:
        raise UsageError(
            f"{len(options.files)} archives, and one folder for their tables",
            where=str(folder),
            valid="one archive at a time, each with a folder of its own; --canonical takes several",
            fix="over several runs: pike-hpc report RUN… --out DIR",
        )


def archive_of(path: Path) -> Path:
    """The archive that a user names by itself or by its run folder."""
    return path / "archive.h5" if path.is_dir() else path


def _run_dir(path: Path) -> Path:
    if not path.exists() and path.name != "archive.h5":
        raise UsageError("no such file or folder", where=str(path), valid="a run folder")
    folder = path if path.is_dir() else path.parent
    if not (folder / "journal").is_dir():
        raise UsageError(
            "no journal to rebuild from",
            where=str(folder),
            valid="a run folder, or the archive.h5 inside one",
        )
    return folder


def _export(archive: Path, options: argparse.Namespace) -> None:
    if options.csv:
        export_csv(archive, options.csv)
        print(options.csv)
    elif options.parquet:
        # The others need no pandas.
        from pike_hpc.analysis import write_parquet  # noqa: PLC0415

        write_parquet(archive, options.parquet)
        print(options.parquet)
    elif options.pike:
        export_pike_layout(archive, options.pike)
        print(options.pike)
    elif options.canonical:
        print(canonical(archive), end="")
    else:
        raise UsageError(
            "export to what?",
            valid="--canonical, --csv DIR, --parquet DIR, --pike DIR",
            where=str(archive),
        )

"""Where a run's folder may be made: nowhere among other people's files."""

from __future__ import annotations

from pathlib import Path

from pike_hpc.records import UsageError

_OURS = {"code", "logs", "run.yaml.new", "slurm"}
"""What a run that was interrupted while it was made leaves, locks included: run.yaml is last."""


def check_place(folder: Path) -> None:
    """Raises UsageError for a folder that is no run and holds something; hidden files don't count.

    OSError where it can't be read.
    """
    if not folder.exists() or (folder / "run.yaml").exists():
        return
    names = {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")}
    foreign = sorted(names - _OURS)
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise UsageError(
            f"{folder} is no run folder, and not empty: {', '.join(foreign[:3])}{more}",
            where="--run",
            valid="a folder that is new, empty, or that `pike-hpc submit` made",
            fix=f"name one inside it: --run {folder / 'run'}",
        )

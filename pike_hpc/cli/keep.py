"""A finished run is copied to the site's paths.keep: what is enough to resume or read it there."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pike_hpc.cli.run import Run

_LEFT_BEHIND = ("mailbox", "slurm", "logs", ".kind")
"""Of this machine, its file system and this sitting only."""


def keep(run: Run) -> Path | None:
    """Copy the run where the site keeps runs; None where it keeps none.

    The copy appears whole: it is made beside its name and renamed. A copy that is there already
    is replaced. A folder that cannot be written is reported, not raised: the run itself is safe.
    """
    folder = run.resolved.site.paths.keep
    if folder is None:
        return None
    kept = Path(folder) / run.dir.name
    beside = kept.with_name(kept.name + ".new")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(run.dir, beside, ignore=shutil.ignore_patterns(*_LEFT_BEHIND))
        shutil.rmtree(kept, ignore_errors=True)
        beside.rename(kept)
    except OSError as error:
        print(f"pike-hpc: the run was not copied to {kept}: {error}", file=sys.stderr)
        return None
    return kept

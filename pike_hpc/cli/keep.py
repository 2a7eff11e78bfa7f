"""A finished run is copied to the site's paths.keep: what is enough to resume or read it there."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from pike_hpc.cli.run import Run, writer_id
from pike_hpc.journal import Held, WriterLock, journal_digest
from pike_hpc.records import PikeError

_LEFT_BEHIND = frozenset({"mailbox", "slurm", "logs"})
"""Of this machine and this sitting only; its code has folders of these names, too."""

_KIND = ".kind"
"""How the locks beside it are taken: of this file system only."""


def keep(run: Run) -> Path | None:
    """Copy the run where the site keeps runs; None where it keeps none or another copies it now.

    It is copied beside its name and renamed once it is whole; what was there goes aside first, to
    NAME.old, and is put back by the next copy where a kill came between the two renames. A folder
    that cannot be written is reported, not raised: the run itself is safe.
    """
    folder = run.resolved.site.paths.keep
    if folder is None:
        return None
    kept = Path(folder) / run.dir.name
    lock = run.dir / "slurm" / "locks" / "keep"
    try:
        if kept.exists() and kept.samefile(run.dir):  # a copy that went on where it was kept
            return kept
        with WriterLock.take(lock, writer=writer_id(), clock=time.time):
            _replace(run.dir, kept)
    except Held:
        return None
    except (OSError, PikeError) as error:
        print(f"pike-hpc: the run was not copied to {kept}: {error}", file=sys.stderr)
        return None
    return kept


def is_kept(run: Run) -> bool:
    """Whether there is nothing to copy: no place for it, or it is there as the journal stands."""
    folder = run.resolved.site.paths.keep
    if folder is None:
        return True
    kept = Path(folder) / run.dir.name
    try:
        has_archive = (kept / "archive.h5").exists()
        return has_archive and journal_digest(kept) == journal_digest(run.dir)
    except (OSError, PikeError):  # copying will say what is wrong
        return False


def _replace(run_dir: Path, kept: Path) -> None:
    beside, aside = (kept.with_name(kept.name + end) for end in (".new", ".old"))
    if aside.exists() and not kept.exists():
        aside.rename(kept)
    for left in (beside, aside):
        shutil.rmtree(left, ignore_errors=True)

    def left_behind(folder: str, names: list[str]) -> set[str]:
        own = _LEFT_BEHIND if Path(folder) == run_dir else frozenset()
        return {name for name in names if name in own or name == _KIND}

    shutil.copytree(run_dir, beside, ignore=left_behind)
    if kept.exists():
        kept.rename(aside)
    beside.rename(kept)
    shutil.rmtree(aside, ignore_errors=True)

"""Who drives a task now, for those who only watch: no lock is taken to find out."""

from __future__ import annotations

from pathlib import Path

from pike_hpc.journal.holder import Holder, holder_of
from pike_hpc.journal.segment import checked_slug, journal_folder


def controller_of(run_dir: Path, slug: str) -> Holder | None:
    """The controller that holds the task, or None where there is none or it ended on this node.

    One on another machine counts as alive: from here nobody can prove otherwise.
    """
    holder = holder_of(journal_folder(run_dir) / "locks" / f"{checked_slug(slug)}.lock")
    return None if holder is None or holder.has_ended() else holder

"""What an archive holds that the journal beside it has lost: it may be the last copy."""

from __future__ import annotations

import json
from pathlib import Path

from pike_hpc.archive.layout import FILE_NAME, open_archive
from pike_hpc.journal import SegmentName, task_slugs, watermark
from pike_hpc.records import ControllerStarted, PikeError, UsageError

_SHOWN = 5
"""Segments that a message names."""

_SAYS_NOTHING = ControllerStarted.__name__.encode()
"""The only event of a segment whose controller may withdraw it."""


def require_journal(run_dir: Path) -> None:
    """Raises PikeError where segments that the archive was built from are gone.

    Where there is no archive, or none that can be read, nothing can be missed.
    """
    gone = lost_segments(run_dir)
    if not gone:
        return
    path, left = run_dir / FILE_NAME, set(task_slugs(run_dir))
    tasks = sorted({slug for slug, _ in gone} - left)
    names = [name for _, name in gone]
    whole = f", and with them all of {', '.join(tasks[:_SHOWN])}" if tasks else ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    raise PikeError(
        f"the journal has lost {len(names)} segments that the archive was built from{whole}: "
        f"{', '.join(names[:_SHOWN])}{more}",
        where=str(run_dir / "journal"),
        valid=f"{path} holds them still, and is left as it is: pike-hpc report {path}",
        fix="restore them from a copy; or, to go on without them, move the archive elsewhere",
    )


def lost_segments(run_dir: Path) -> tuple[tuple[str, str], ...]:
    """(task slug, segment) of those that told something and are gone."""
    try:
        with open_archive(run_dir / FILE_NAME) as file:
            seen = json.loads(file.attrs["watermark"])
            slugs = [bytes(slug).decode() for slug in file["tasks"]["slug"]]
            told = {
                (slugs[task], epoch)
                for task, epoch, kind in file["events"]["task", "epoch", "kind"].tolist()
                if kind != _SAYS_NOTHING
            }
    except UsageError:
        return ()
    gone = [
        name
        for text in sorted(seen.keys() - watermark(run_dir).keys())
        if (name := SegmentName.parse(text)) is not None
    ]
    return tuple((name.slug, str(name)) for name in gone if (name.slug, name.epoch) in told)

"""Making RUN/archive.h5 from the journal: whole or not at all, one maker at a time.

The journal stays the record; the archive can be thrown away and made again at any time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from pike_hpc.archive.layout import FILE_NAME, open_archive
from pike_hpc.archive.losses import require_journal
from pike_hpc.archive.verify import verify
from pike_hpc.archive.write import RunContent, archive_image, config_sha256, watermark_json
from pike_hpc.journal import (
    Disk,
    OsDisk,
    WriterLock,
    explain,
    read_task,
    task_slugs,
    watermark,
    write_all,
)
from pike_hpc.records import PikeError, UsageError

_NEW = FILE_NAME + ".new"
_WAIT_S = 120.0
"""Another maker needs seconds; one that takes longer hangs."""


def rebuild(
    run_dir: Path,
    *,
    disk: Disk | None = None,
    clock: Callable[[], float] = time.time,
    wait_s: float = _WAIT_S,
) -> Path:
    """Build the archive beside the old one, verify it, and put it in the old one's place.

    Returns its path. Raises TryAgainLater when another maker holds the lock for longer than
    wait_s or the disk is full, PikeError for a damaged journal and for one that has lost what the
    old archive was built from, UsageError where there is none;
    the old archive is then as it was.
    """
    disk = disk or OsDisk()
    require_journal(run_dir)
    if not task_slugs(run_dir):
        raise UsageError(
            "no journal to build an archive from",
            where=str(run_dir / "journal"),
            valid="a run folder whose search has begun",
            fix="start the run first: pike-hpc submit",
        )
    path, new = run_dir / FILE_NAME, run_dir / _NEW
    with WriterLock.take(
        run_dir / "archive.lock", writer="archive rebuild", clock=clock, wait_s=wait_s
    ):
        require_journal(run_dir)  # against the archive that another maker has just put there
        image = archive_image(_content(run_dir))
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(new)  # left by a maker that was killed
        try:
            _write(disk, new, image)
            _check(new, image)
            disk.replace(new, path)
            disk.sync_folder(run_dir)
        except OSError as error:
            raise explain(error, new, "write the archive") from None
        finally:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
    return path


def is_current(run_dir: Path) -> bool:
    """True when the archive was built from the journal and configuration that are there now."""
    try:
        with open_archive(run_dir / FILE_NAME) as file:
            seen = str(file.attrs["watermark"])
            config = str(file.attrs["config_sha256"])
    except UsageError:
        return False
    return seen == watermark_json(watermark(run_dir)) and config == config_sha256(_config(run_dir))


def _content(run_dir: Path) -> RunContent:
    # The watermark first: events that come while we read make the archive look old, never new.
    seen = watermark(run_dir)
    return RunContent(
        run_id=run_dir.resolve().name,
        config=_config(run_dir),
        watermark=seen,
        tasks={slug: read_task(run_dir, slug) for slug in task_slugs(run_dir)},
    )


def _config(run_dir: Path) -> bytes:
    """The bytes of run.yaml; none where a journal stands alone."""
    path = run_dir / "run.yaml"
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise explain(error, path, "read the configuration") from None


def _check(path: Path, image: bytes) -> None:
    """What is on the disk is what was made, and what was made is sound."""
    problems = verify(path)
    if not problems and path.read_bytes() != image:
        problems = ("its bytes differ from those written",)
    if problems:
        raise PikeError(
            f"the new archive reads back wrong: {problems[0]}",
            where=str(path),
            fix="check the file system, then give the same command again",
        )


def _write(disk: Disk, path: Path, image: bytes) -> None:
    fd = disk.create(path)
    try:
        write_all(disk, fd, image, 0)
        disk.sync(fd)
    finally:
        disk.close(fd)

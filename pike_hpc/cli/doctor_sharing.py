"""How agents and workers would share a folder: what a mailbox made there settles, then tries.

A mailbox is made where `submit` is typed and used on nodes that may mount its folder another way:
so the login node leaves a note of what it found, and each node tries the same and compares.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from pike_hpc.cli.check import Check
from pike_hpc.cli.doctor_files import kind_of
from pike_hpc.journal import choose_lock
from pike_hpc.machine import mount_table
from pike_hpc.mailbox import FileMailbox
from pike_hpc.mailbox.files import Files
from pike_hpc.mailbox.format import open_format
from pike_hpc.records import EvalRequest, EvalResult, EvalStatus, PikeError, Task, from_json

_REQUEST = EvalRequest(
    task=Task(suite="doctor", id="1", name="nothing", source=""),
    candidate_source="",
    device_kind="cpu",
    image_digest="",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """What a machine would choose for a folder, by trying."""

    commit: str
    """How a mailbox made there commits results: link, renameat2 or directory."""
    lock: str
    """How it locks: flock or claims."""
    journal: str
    """How an agent there locks its task: flock or claims."""
    system: str
    """The file system's kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What the login node leaves for a job of doctor's. It holds both locks while it waits."""

    written_at: float
    locked: bool = False
    """Whether the note is locked by flock."""
    claimed: bool = False
    """Whether the file beside it is locked by claims."""
    sharing: Sharing | None = None
    """None where nothing could be chosen there."""


def read_note(file: Path) -> Note:
    """Raises OSError, or CodecError where it is not whole yet."""
    return from_json(Note, file.read_text("utf-8"))


def sharing_of(work: Path, files: Files | None = None) -> Sharing:
    """What a run there would use, had this machine to choose. Raises PikeError or OSError."""
    with tempfile.TemporaryDirectory(prefix="pike-doctor-", dir=work) as name:
        folder = Path(name)
        journal = choose_lock(folder, mount_table())
        form = open_format(folder, files or Files(), "doctor", commit=None, lock=None, shards=1)
    return Sharing(commit=form.commit, lock=form.lock, journal=journal.value, system=kind_of(work))


def hand_over(work: Path, sharing: Sharing, files: Files | None = None) -> None:
    """Put a request into a mailbox shared so, give it back once, and commit its result once.

    Raises PikeError or OSError where a step fails or is done twice.
    """
    with tempfile.TemporaryDirectory(prefix="pike-doctor-", dir=work) as name:
        mailbox = FileMailbox(Path(name), files=files, commit=sharing.commit, lock=sharing.lock)
        mailbox.put(_REQUEST)
        for claim in mailbox.claim("doctor", frozenset({"cpu"})):
            mailbox.release(claim)
        result = EvalResult(key=_REQUEST.key, status=EvalStatus.TIMEOUT)
        claims = mailbox.claim("doctor", frozenset({"cpu"}))
        won = [mailbox.commit(claim, result) for claim in claims for _ in range(2)]
    if won != [True, False]:
        raise PikeError(
            f"requests are not renamed, or results not committed once by {sharing.commit}",
            where=str(work),
            fix="put paths.work on another file system",
        )


def work_check(work: Path, files: Files | None = None) -> Check:
    """Whether requests can be handed over there, and how results are committed."""
    work.mkdir(parents=True, exist_ok=True)
    found = sharing_of(work, files)
    hand_over(work, found, files)
    return Check("work", "ok", f"{work.resolve()}, {_works(found)}")


def work_of_a_node(work: Path, login: Sharing | None, files: Files | None = None) -> Check:
    """Whether a mailbox that the login node made can be used on this node."""
    here = sharing_of(work, files)
    if login is None:
        hand_over(work, here, files)
        return Check("work", "ok", _works(here))
    differs = [f"{login.system} on the login node"] if login.system != here.system else []
    if login.commit != here.commit:
        differs.append(f"alone this node would commit by {here.commit}")
    try:
        hand_over(work, login, files)
    except (PikeError, OSError) as error:
        said = error.what if isinstance(error, PikeError) else str(error)
        made = f"mailboxes are made on the login node, with commit {login.commit} and lock"
        detail = "; ".join([f"{made} {login.lock}, and here that fails: {said}", *differs])
        fix = "put paths.work on a file system that login and compute nodes mount alike"
        return Check("work", "fail", detail, fix)
    used = f"{here.system}: requests are renamed, results committed by {login.commit}"
    return Check("work", "ok", "; ".join([used, *differs]))


def _works(found: Sharing) -> str:
    return f"{found.system}: requests are renamed, results committed by {found.commit}"

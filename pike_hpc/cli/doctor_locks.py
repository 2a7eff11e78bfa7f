"""What doctor finds out about locks in a folder, on one node and between two.

They are what differs most: a file system may refuse them, grant them to two nodes at once, or do so
on compute nodes alone. A run knows two kinds, flock and claims by hard link. Its mailbox keeps to
the kind chosen where it was made, its journal to that of the first agent that locked a task.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pike_hpc.cli.check import Check
from pike_hpc.cli.doctor_files import kind_of
from pike_hpc.cli.doctor_sharing import Note, Sharing, sharing_of
from pike_hpc.journal import LockKind, WriterLock
from pike_hpc.records import PikeError, TryAgainLater, to_json

ENOTSUPP = 524
"""The kernel's own number, which should never reach a program and does."""

_ELSEWHERE = "put paths.work on a file system that nodes mount themselves, such as scratch"
LOCK_ERRORS = {
    errno.ENOLCK: (
        "there are no locks to be had (errno 37): an NFS mount without its lock service",
        "ask for a mount with locks, or put paths.work on the parallel file system",
    ),
    errno.ENOSYS: (
        "locks are not implemented (errno 38): Lustre mounted without `flock`",
        "ask for the mount option flock, or put paths.work elsewhere",
    ),
    errno.EOPNOTSUPP: (
        "locks are not supported (errno 95): a file system that a server forwards",
        _ELSEWHERE,
    ),
    ENOTSUPP: (
        "locks are not supported (errno 524): a file system that a server forwards, as DVS does",
        _ELSEWHERE,
    ),
}
"""What a client says that knows no locks: a mailbox with flock goes on without them there."""

_GOES_ON = "a run made here goes on with claims by hard link, which are slower"
_SPARE = "they only spare contention, and a rename decides who has a request"
_LEFT = (
    "one that is killed leaves its lock, and keeps those of other nodes off until a person removes "
    "RUN/journal/locks/TASK.lock*"
)
_APART_FIX = {
    "claims": "start a run's first agent in a job: after one on the login node these are refused",
    "flock": "start agents in jobs alone: after one of these those on the login node are refused",
}
"""By the kind that agents here would take, and the login node would not."""

_NAMES = {"flock": "flock", "claims": "claims by hard link"}

Lock = Callable[[int, int], None]


def lock_check(folder: Path, lock: Lock = fcntl.flock) -> Check:
    """Whether a file there is locked once and no more."""
    with tempfile.NamedTemporaryFile(prefix="pike-doctor-", dir=folder) as one:
        try:
            lock(one.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            what, fix = _meaning(error)
            return Check("lock", "warn", f"{what}; {_GOES_ON}", fix)
        if _is_held(Path(one.name), lock):
            return Check("lock", "ok", f"flock excludes on this node, on {kind_of(folder)}")
    return Check("lock", "warn", f"flock excludes nobody on {kind_of(folder)}", _GOES_ON)


def claims_check(folder: Path, used: Sharing) -> Check:
    """Whether a lock made of hard links is had there once and no more, and who needs it."""
    users = ["mailbox"] if used.lock == "claims" else []
    users += ["journal"] if used.journal == "claims" else []
    return _claims(folder, None, users)


def claims_of_another(note: Path, login: Note, journal: str | None) -> Check:
    """The same on a node, where the login node holds one beside the note."""
    users = ["mailbox"] if login.sharing is None or login.sharing.lock == "claims" else []
    users += ["journal"] if journal == "claims" else []
    return _claims(note.parent, beside(note) if login.claimed else None, users)


def _claims(folder: Path, held: Path | None, users: list[str]) -> Check:
    """`held` is locked by another node; `users` are those parts of a run that need such locks."""
    try:
        with tempfile.TemporaryDirectory(prefix="pike-doctor-", dir=folder) as name:
            own = Path(name, "lock")
            with _claim(own):
                wrong = None if _is_claimed(own) else "exclude nobody"
        if held is not None and not _is_claimed(held):
            wrong = "that the login node holds do not hold here"
    except PikeError as error:
        wrong = f"can't be had: {error.what}"
    need = f"used by {' and '.join(users)}" if users else "needed by nobody here"
    if wrong is None:
        return Check("claims", "ok", f"claims by hard link exclude on this node; {need}")
    fix = "put paths.work on a file system with flock, or with hard links"
    return Check("claims", "fail" if users else "ok", f"claims by hard link {wrong}; {need}", fix)


def lock_of_another(
    note: Path, login: Note, journal: str | None, lock: Lock = fcntl.flock
) -> Check:
    """Whether the lock that the login node holds is seen on this one, and what a run does then.

    Args:
        note: the file that it holds.
        login: what is written there.
        journal: the kind of lock that an agent here would take for its task; None for a worker.
        lock: flock.
    """
    used, kind, fix = login.sharing, kind_of(note), ""
    try:
        held = _is_held(note, lock)
    except OSError as error:
        flock, (what, fix) = "refused", _meaning(error)
        what += "; on the login node flock works" if login.locked else "; nor on the login node"
        if used is not None and used.lock == "flock" and error.errno not in LOCK_ERRORS:
            return Check("lock", "fail", f"{what}; a mailbox made there stops at this", fix)
    else:
        flock, what = "excludes", f"a lock held elsewhere holds here, on {kind}"
        if not login.locked:
            what = f"flock works here, on {kind}, and not on the login node"
        elif not held:
            flock = "blind"
            what = f"a lock held elsewhere does not hold here (as with localflock), on {kind}"
            fix = "nothing to do for a run. Never trust other programs' locks there"
    apart = False
    if used is not None:
        if journal is not None and journal != used.journal:
            apart, fix = True, "; ".join(each for each in (fix, _APART_FIX[journal]) if each)
        then = (_mailbox_then(used.lock, flock), _journal_then(used.journal, journal, flock))
        what = "; ".join(part for part in (what, *then) if part)
    return Check("lock", "ok" if flock == "excludes" and not apart else "warn", what, fix)


def _mailbox_then(kind: str, flock: str) -> str:
    """What a mailbox of that kind does on a node where flock is so."""
    if kind == "claims":
        return "the mailbox uses claims by hard link on every node"
    return {
        "excludes": "",
        "blind": f"the mailbox's locks hold within each node: {_SPARE}",
        "refused": f"the mailbox goes on without locks here: {_SPARE}",
    }[flock]


def _journal_then(login: str, here: str | None, flock: str) -> str:
    """What an agent on this node does about its task."""
    if here is None or (here == login == "flock" and flock == "excludes"):
        return ""
    said = "so do agents for their tasks"
    if here != login:
        kinds = f"by {_NAMES[here]} here, by {_NAMES[login]} on the login node"
        said = f"agents lock tasks {kinds}, and all of a run as its first did"
    if here == "claims":
        return f"{said}; {_LEFT}"
    if here != login:
        return said
    return "agents of two nodes don't keep each other off a task: what the newer one writes counts"


@contextlib.contextmanager
def note_for_nodes(work: Path) -> Iterator[Path]:
    """A note in a folder of its own, held by each kind of lock that can be had on this machine."""
    with (
        tempfile.TemporaryDirectory(prefix="pike-doctor-", dir=work) as name,
        contextlib.ExitStack() as held,
    ):
        note, locked, claimed, sharing = Path(name, "note.json"), False, False, None
        file = held.enter_context(note.open("w", encoding="utf-8"))
        # What can't be had has been told by the checks of this machine.
        with contextlib.suppress(OSError):
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
        with contextlib.suppress(PikeError):
            held.enter_context(_claim(beside(note)))
            claimed = True
        with contextlib.suppress(PikeError, OSError):
            sharing = sharing_of(work)
        told = Note(written_at=time.time(), locked=locked, claimed=claimed, sharing=sharing)
        file.write(to_json(told))
        file.flush()
        yield note


def beside(note: Path) -> Path:
    """What is locked by claims while the note is locked by flock."""
    return note.with_name("claimed")


def _is_held(file: Path, lock: Lock) -> bool:
    """Whether somebody has the lock on it. Raises OSError where locks are refused."""
    with file.open("rb") as opened:
        try:
            lock(opened.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _claim(path: Path) -> WriterLock:
    """Held by claims, as an agent would hold its task. Raises TryAgainLater."""
    return WriterLock.take(path, writer="doctor", clock=time.time, kind=LockKind.CLAIMS)


def _is_claimed(path: Path) -> bool:
    """Whether somebody has it. Raises PikeError where such locks can't be had."""
    try:
        _claim(path).release()
    except TryAgainLater as error:
        if not error.what.startswith("locked by"):
            raise
        return True
    return False


def _meaning(error: OSError) -> tuple[str, str]:
    """What a lock's error means, and what to do about it."""
    unknown = (str(error), "put paths.work on another file system")
    return LOCK_ERRORS.get(error.errno or 0, unknown)

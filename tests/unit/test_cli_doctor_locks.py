"""What doctor says of a folder that nodes share, by file systems that link and lock by hand."""

import dataclasses
import errno
import os
import time
from pathlib import Path

import pytest
from builders.slurm_run import SITE, scripted_cluster
from filelock import BaseFileLock

from pike_hpc.cli.check import Check, tried
from pike_hpc.cli.doctor import any_work
from pike_hpc.cli.doctor_locks import (
    ENOTSUPP,
    LOCK_ERRORS,
    claims_check,
    claims_of_another,
    lock_check,
    lock_of_another,
    note_for_nodes,
)
from pike_hpc.cli.doctor_node import inside, visible
from pike_hpc.cli.doctor_sharing import (
    Note,
    Sharing,
    hand_over,
    read_note,
    sharing_of,
    work_check,
    work_of_a_node,
)
from pike_hpc.journal import LockKind
from pike_hpc.journal.lock import agreed
from pike_hpc.mailbox.files import Files
from pike_hpc.mailbox.locks import acquired
from pike_hpc.records import PikeError, UsageError, to_json

FLOCK = Sharing(commit="link", lock="flock", journal="flock", system="gpfs")
CLAIMS = dataclasses.replace(FLOCK, lock="claims", journal="claims")


class NoLinks(Files):
    """A client of a file system without hard links."""

    def link(self, source: Path, target: Path) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), str(target))


class OnlyFolders(NoLinks):
    """Nor does it know RENAME_NOREPLACE."""

    def rename_new(self, source: Path, target: Path) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(target))


class Replacing(Files):
    """Its links replace what is there."""

    def link(self, source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes())


def refusing(number):
    def lock(_file: int, _how: int) -> None:
        raise OSError(number, os.strerror(number))

    return lock


def granting(_file: int, _how: int) -> None:
    """As localflock does to two nodes."""


@pytest.mark.parametrize(
    ("files", "way"), [(Files, "link"), (NoLinks, "renameat2"), (OnlyFolders, "directory")]
)
def test_the_way_to_commit_is_found_by_trying_and_told(tmp_path, files, way) -> None:
    check = work_check(tmp_path / "new", files())
    assert check.state == "ok"
    assert check.detail.startswith(str(tmp_path / "new"))
    assert check.detail.endswith(f"requests are renamed, results committed by {way}")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_commit_that_replaces_another_is_none(tmp_path) -> None:
    with pytest.raises(PikeError, match="committed once by link"):
        hand_over(tmp_path, FLOCK, Replacing())
    assert sharing_of(tmp_path, Replacing()).commit == "renameat2"


def test_a_node_uses_the_mailbox_as_the_login_node_made_it(tmp_path) -> None:
    login = dataclasses.replace(sharing_of(tmp_path), system="lustre flock")
    same = work_of_a_node(tmp_path, login)
    assert same.state == "ok"
    assert "committed by link; lustre flock on the login node" in same.detail
    login = dataclasses.replace(login, commit="renameat2")
    other = work_of_a_node(tmp_path, login)
    assert other.state == "ok"
    assert "committed by renameat2;" in other.detail
    assert other.detail.endswith("alone this node would commit by link")
    assert "committed by link" in work_of_a_node(tmp_path, None).detail


def test_a_node_that_cannot_commit_as_the_login_node_chose_fails(tmp_path) -> None:
    check = work_of_a_node(tmp_path, sharing_of(tmp_path), NoLinks())
    assert check.state == "fail"
    assert "made on the login node, with commit link and lock flock, and here that" in check.detail
    assert "Operation not supported" in check.detail
    assert check.detail.endswith("alone this node would commit by renameat2")
    assert "login and compute nodes mount alike" in check.fix
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "says", "fix"),
    [
        (errno.ENOLCK, "errno 37", "paths.work"),
        (errno.ENOSYS, "errno 38", "mount option flock"),
        (errno.EOPNOTSUPP, "errno 95", "scratch"),
        (ENOTSUPP, "errno 524", "scratch"),
        (errno.EIO, "Input/output error", "another file system"),
    ],
)
def test_a_lock_that_is_refused_is_explained(tmp_path, number, says, fix) -> None:
    check = lock_check(tmp_path, refusing(number))
    assert check.state == "warn"
    assert says in check.detail
    assert check.detail.endswith(
        "a run made here goes on with claims by hard link, which are slower"
    )
    assert fix in check.fix
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_excludes_nobody_is_seen(tmp_path) -> None:
    assert lock_check(tmp_path).state == "ok"
    check = lock_check(tmp_path, granting)
    assert (check.state, "excludes nobody" in check.detail) == ("warn", True)


@pytest.fixture
def note(tmp_path):
    """What the login node holds while a job tries things."""
    with note_for_nodes(tmp_path) as file:
        yield file


def test_a_lock_of_another_node_is_seen(note) -> None:
    login = read_note(note)
    assert (login.locked, login.claimed, login.sharing.lock) == (True, True, "flock")
    for journal in (None, "flock"):
        check = lock_of_another(note, login, journal)
        assert check.state == "ok"
        assert check.detail.startswith("a lock held elsewhere holds here, on ")
        assert ";" not in check.detail, "nothing is out of the ordinary"
    claims = claims_of_another(note, login, None)
    assert (claims.state, claims.name) == ("ok", "claims")
    assert claims.detail.endswith("needed by nobody here")


def test_what_the_login_node_wrote_is_seen_and_goes_with_it(tmp_path) -> None:
    with note_for_nodes(tmp_path) as note:
        assert visible(note).state == "ok"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", sorted(LOCK_ERRORS))
def test_where_only_the_node_knows_no_locks_the_mailbox_goes_on_without(note, number) -> None:
    """By claims goes nobody but agents, if the first of them is one of such a node."""
    login = dataclasses.replace(read_note(note), sharing=FLOCK)
    worker = lock_of_another(note, login, None, refusing(number))
    assert worker.state == "warn"
    assert f"errno {number}" in worker.detail
    assert "on the login node flock works; the mailbox goes on without locks here" in worker.detail
    assert "claims" not in worker.detail
    assert worker.fix == LOCK_ERRORS[number][1]
    agent = lock_of_another(note, login, "claims", refusing(number))
    assert "the mailbox goes on without locks here" in agent.detail
    assert (
        "agents lock tasks by claims by hard link here, by flock on the login node, and all of a "
        "run as its first did; one that is killed leaves its lock"
    ) in agent.detail
    assert agent.fix.startswith(worker.fix)
    assert "start a run's first agent in a job" in agent.fix


def test_what_doctor_says_of_the_first_agents_kind_is_so(tmp_path) -> None:
    here, there = LockKind.CLAIMS, LockKind.FLOCK
    for name in ("ours first", "theirs first"):
        (tmp_path / name).mkdir()
    assert agreed(tmp_path / "ours first", here) is here
    assert agreed(tmp_path / "ours first", there) is here
    assert agreed(tmp_path / "theirs first", there) is there
    with pytest.raises(UsageError):
        agreed(tmp_path / "theirs first", here)


@pytest.mark.parametrize("number", sorted(LOCK_ERRORS))
def test_those_are_the_errors_that_a_mailbox_goes_on_after(tmp_path, number) -> None:
    class Refused(BaseFileLock):
        def _acquire(self) -> None:
            if number == errno.ENOSYS:
                raise NotImplementedError  # as filelock's own
            raise OSError(number, os.strerror(number))

        def _release(self) -> None:
            """Never held."""

    assert acquired(Refused(tmp_path / "lock"), 0) is False


def test_another_error_stops_a_mailbox_that_uses_flock(note) -> None:
    login = dataclasses.replace(read_note(note), sharing=FLOCK)
    check = lock_of_another(note, login, None, refusing(errno.EIO))
    assert check.state == "fail"
    assert "a mailbox made there stops at this" in check.detail
    login = dataclasses.replace(login, sharing=CLAIMS)
    assert lock_of_another(note, login, None, refusing(errno.EIO)).state == "warn"


def test_where_neither_node_knows_locks_all_use_claims(note) -> None:
    login = dataclasses.replace(read_note(note), locked=False, sharing=CLAIMS)
    check = lock_of_another(note, login, "claims", refusing(ENOTSUPP))
    assert check.state == "warn"
    assert (
        "nor on the login node; the mailbox uses claims by hard link on every node; so do agents "
        "for their tasks; one that is killed leaves its lock"
    ) in check.detail
    assert "agent" not in check.fix


def test_locks_that_two_nodes_are_granted_at_once(note) -> None:
    login = dataclasses.replace(read_note(note), sharing=FLOCK)
    check = lock_of_another(note, login, "flock", granting)
    assert check.state == "warn"
    assert "does not hold here (as with localflock)" in check.detail
    assert "the mailbox's locks hold within each node" in check.detail
    assert "agents of two nodes don't keep each other off a task" in check.detail
    login = dataclasses.replace(login, sharing=CLAIMS)
    check = lock_of_another(note, login, "claims", granting)
    assert "the mailbox uses claims by hard link on every node; so do agents" in check.detail
    assert "within each node" not in check.detail


def test_locks_that_the_login_node_lacks_are_no_lock_that_does_not_hold(note) -> None:
    login = dataclasses.replace(read_note(note), locked=False, sharing=CLAIMS)
    worker = lock_of_another(note, login, None, granting)
    assert worker.state == "ok"
    assert "and not on the login node; the mailbox uses claims by hard link" in worker.detail
    agent = lock_of_another(note, login, "flock", granting)
    assert agent.state == "warn"
    assert "tasks by flock here, by claims by hard link on the login node" in agent.detail
    assert agent.fix.startswith("start agents in jobs alone")


def test_claims_say_who_needs_them(tmp_path) -> None:
    assert claims_check(tmp_path, FLOCK).detail.endswith("; needed by nobody here")
    assert claims_check(tmp_path, CLAIMS).detail.endswith("; used by mailbox and journal")
    only = dataclasses.replace(FLOCK, lock="claims")
    assert claims_check(tmp_path, only).detail.endswith("; used by mailbox")
    assert list(tmp_path.iterdir()) == []


def test_a_claim_of_the_login_node_that_is_not_seen_matters_to_those_who_use_claims(tmp_path):
    note = tmp_path / "note.json"
    login = Note(written_at=time.time(), claimed=True, sharing=FLOCK)
    check = claims_of_another(note, login, "claims")
    assert check.state == "fail"
    assert "that the login node holds do not hold here; used by journal" in check.detail
    assert claims_of_another(note, login, None).state == "ok"
    login = dataclasses.replace(login, sharing=CLAIMS)
    assert claims_of_another(note, login, None).state == "fail"
    assert claims_of_another(note, dataclasses.replace(login, claimed=False), None).state == "ok"


def test_claims_that_cannot_be_had_are_told(tmp_path) -> None:
    """As where a file system has no hard links: here a folder is in the way."""
    (tmp_path / "claimed").mkdir()
    note = tmp_path / "note.json"
    login = Note(written_at=time.time(), claimed=True, sharing=CLAIMS)
    check = claims_of_another(note, login, None)
    assert check.state == "fail"
    assert "can't be had" in check.detail
    assert "hard links" in check.fix


@pytest.mark.parametrize("kind", ["worker", "agent"])
def test_a_node_tries_the_folder_as_the_login_node_does(tmp_path, monkeypatch, kind) -> None:
    scripted_cluster(tmp_path, monkeypatch)
    (tmp_path / "here.yaml").write_text(SITE)
    (tmp_path / "runs").mkdir()
    with note_for_nodes(tmp_path / "runs") as note:
        tries = inside(any_work("here.yaml"), kind, note)
        names = ("visible", "work", "lock", "claims", "clock", "quota")
        checks = {check.name: check for check in tried({name: tries[name] for name in names})}
    assert {check.state for check in checks.values()} <= {"ok", "warn"}
    assert "committed by link" in checks["work"].detail
    assert "held elsewhere holds here" in checks["lock"].detail
    assert "exclude on this node" in checks["claims"].detail
    assert "GB free" in checks["quota"].detail


def test_of_a_journal_an_agents_node_is_asked_and_a_workers_is_not(tmp_path) -> None:
    with note_for_nodes(tmp_path) as note:
        other = dataclasses.replace(read_note(note).sharing, journal="claims")
        note.write_text(to_json(dataclasses.replace(read_note(note), sharing=other)))
        said = {
            kind: inside(any_work("local"), kind, note)["lock"]() for kind in ("worker", "agent")
        }
    assert (said["worker"].state, said["agent"].state) == ("ok", "warn")
    assert "all of a run as its first did" in said["agent"].detail


def test_a_note_that_is_not_there_fails_what_needs_it(tmp_path) -> None:
    tries = inside(any_work("local"), "worker", tmp_path / "none.json")
    checks: list[Check] = list(tried({name: tries[name] for name in ("work", "lock", "claims")}))
    assert [check.state for check in checks] == ["fail"] * 3
    note = tmp_path / "torn.json"
    note.write_text(to_json(Note(written_at=1.0))[:20])
    tries = inside(any_work("local"), "worker", note)
    assert [check.state for check in tried({"lock": tries["lock"]})] == ["fail"]

"""What a mailbox's folder may meet: torn, altered and foreign files, other versions, full disks."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from builders.faulty_files import FaultyFiles

from pike_hpc.mailbox import FileMailbox, QueueCounts
from pike_hpc.mailbox.batch import BATCH_MAX, member, pack
from pike_hpc.mailbox.disk import is_shared
from pike_hpc.mailbox.envelope import seal
from pike_hpc.mailbox.files import Files
from pike_hpc.mailbox.layout import Hold, Ticket, slug
from pike_hpc.mailbox.line import BLOCK, SHORT, Line
from pike_hpc.records import (
    CodecError,
    EvalRequest,
    EvalResult,
    EvalStatus,
    PikeError,
    Task,
    TryAgainLater,
    UsageError,
)

CPU = frozenset({"cpu"})


def request(number: int) -> EvalRequest:
    task = Task(suite="s", id="1", name="one", source="x")
    return EvalRequest(
        task=task, candidate_source=f"# {number}", device_kind="cpu", image_digest="i"
    )


def judged(mailbox: FileMailbox, one: EvalRequest) -> EvalResult:
    (claim,) = mailbox.claim("w", CPU)
    result = EvalResult(key=one.key, status=EvalStatus.TIMEOUT)
    mailbox.commit(claim, result)
    return result


def only(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


@pytest.mark.parametrize(
    "damage", ["torn", "altered", "flipped", "empty", "binary", "other", "folder"]
)
def test_a_damaged_request_is_moved_aside_with_a_reason_and_can_be_put_again(tmp_path, damage):
    mailbox = FileMailbox(tmp_path)
    mailbox.put(request(1))
    path = only(tmp_path / "new")
    data = path.read_bytes()
    path.unlink()
    damaged = {
        "torn": data[:-10],
        "altered": data.replace(b"# 1", b"# 2"),
        "flipped": data.replace(b'"timeout_s":900.0', b'"timeout_s":901.0'),
        "empty": b"",
        "binary": bytes(range(256)),
        "other": seal(request(2)),
    }
    if damage == "folder":
        path.mkdir()
    else:
        path.write_bytes(damaged[damage])
    mailbox.put(request(3))
    # The damaged file had kept its request's name.
    assert [c.request for c in mailbox.claim("w", CPU, 5)] == [request(3)]
    reasons = list((tmp_path / "dead").glob("*.reason"))
    assert len(reasons) == 1
    assert len(reasons[0].read_text()) > 20
    assert mailbox.counts().dead == 1
    assert mailbox.put(request(1))


def test_foreign_files_are_moved_aside_and_hidden_ones_left_alone(tmp_path):
    mailbox = FileMailbox(tmp_path)
    (tmp_path / "new" / "README").write_text("?")
    (tmp_path / "cur" / "core.123").write_text("?")
    (tmp_path / "new" / ".nfs0001").write_text("?")
    (tmp_path / "workers" / "torn.json").write_text("{")
    mailbox.put(request(1))
    assert len(mailbox.claim("w", CPU, 5)) == 1
    assert mailbox.requeue_lost(stale_s=60) == 0
    assert mailbox.workers() == ()
    assert mailbox.counts().dead == 2
    assert only(tmp_path / "new").name == ".nfs0001"


@pytest.mark.parametrize("commit", ["link", "directory"])
def test_a_corrupt_result_is_quarantined_and_its_request_judged_again(tmp_path, commit):
    mailbox, one = FileMailbox(tmp_path, commit=commit), request(1)
    mailbox.put(one)
    judged(mailbox, one)
    path = tmp_path / "done" / f"{one.request_id}.json"
    inner = path / "file" if commit == "directory" else path
    inner.write_bytes(inner.read_bytes()[:-1])
    assert mailbox.results([one.request_id]) == {}
    assert (mailbox.counts().new, mailbox.counts().dead) == (1, 1)
    again = judged(mailbox, one)
    assert mailbox.results([one.request_id]) == {one.request_id: again}


def test_a_kill_between_quarantine_and_queueing_again_loses_nothing(tmp_path):
    mailbox, one = FileMailbox(tmp_path), request(1)
    mailbox.put(one)
    judged(mailbox, one)
    (tmp_path / "done" / f"{one.request_id}.json").unlink()
    assert mailbox.results([one.request_id]) == {}
    assert mailbox.counts().new == 1


def test_another_version_is_refused_with_the_way_out(tmp_path):
    FileMailbox(tmp_path)
    path = tmp_path / "FORMAT"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 7}))
    with pytest.raises(UsageError, match="version 7") as error:
        FileMailbox(tmp_path)
    assert "versions 1 to 3" in str(error.value)
    assert error.value.fix


def test_a_mailbox_of_version_1_is_used_as_it_was_made(tmp_path):
    mailbox, path = FileMailbox(tmp_path), tmp_path / "FORMAT"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 1}))
    shutil.rmtree(tmp_path / "known")
    old = FileMailbox(tmp_path)
    requests = [request(i) for i in range(3)]
    assert old.put_many(requests) == (True, True, True)
    assert old.put_many(requests) == (False, False, False)
    assert all(p.stat().st_nlink == 1 for p in (tmp_path / "new").iterdir())
    claims = old.claim("w", CPU, 2)
    judged = [(c, EvalResult(key=c.request.key, status=EvalStatus.TIMEOUT)) for c in claims]
    assert old.commit_many(judged) == (True, True)
    old.discard([c.request.request_id for c in claims])
    assert old.commit_many(judged) == (False, False)
    assert old.counts() == QueueCounts(new=1, claimed=0, done=0, dead=0)
    assert mailbox.root == tmp_path


def test_a_mailbox_of_version_2_is_used_as_it_was_made(tmp_path):
    FileMailbox(tmp_path)
    path = tmp_path / "FORMAT"
    made = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in made.items() if k != "shards"} | {"version": 2}))
    old, requests = FileMailbox(tmp_path, shards=4), [request(i) for i in range(20)]
    assert old.put_many(requests) == (True,) * 20
    assert {p.stat().st_nlink for p in (tmp_path / "new").iterdir()} == {BATCH_MAX, 4}
    assert [c.request for c in old.claim("w", CPU, 20)] == requests


def test_waiting_requests_are_dealt_to_the_shards_the_mailbox_was_made_with(tmp_path):
    FileMailbox(tmp_path, shards=4)
    mailbox, requests = FileMailbox(tmp_path, shards=9), [request(i) for i in range(200)]
    mailbox.put_many(requests)
    folders = sorted((tmp_path / "new").iterdir())
    assert [folder.name for folder in folders] == ["00", "01", "02", "03"]
    assert all(25 < len(list(folder.iterdir())) < 75 for folder in folders)
    (claim,) = mailbox.claim("w", CPU)
    (folders[0] / "foreign").touch()
    assert [c.request for c in mailbox.claim("v", CPU, 200)] == requests[1:]
    assert mailbox.counts().dead == 1
    mailbox.release(claim)
    assert [c.request for c in mailbox.claim("w", CPU)] == requests[:1]


@pytest.mark.parametrize("shards", [0, -1, 65])
def test_a_mailbox_has_1_to_64_shards(tmp_path, shards):
    with pytest.raises(UsageError, match="shards"):
        FileMailbox(tmp_path / "new", shards=shards)
    FileMailbox(tmp_path / "box")
    path = tmp_path / "box" / "FORMAT"
    path.write_text(json.dumps({**json.loads(path.read_text()), "shards": shards}))
    with pytest.raises(UsageError, match="shards"):
        FileMailbox(tmp_path / "box")


def test_of_a_long_queue_each_look_lists_another_shard_and_begins_elsewhere():
    held = {n: [f"{i:020d}.cpu.x{n}" for i in range(SHORT + 1)] for n in range(3)}
    held[1].append(f"{1:020d}.gpu.y")
    read: list[int] = []

    def line(place):
        return Line(
            lambda n: read.append(n) or list(held[n]),
            lambda n: True,
            lambda: 0.0,
            shards=3,
            place=place,
        )

    for place in range(3):
        one = line(place)
        for turn in range(4):
            one.forget()
            one.look()
            assert read == [(place + turn) % 3]
            read.clear()
        # A kind that this shard holds none of is looked for in the others.
        while (found := one.first(["gpu"])) is None:
            assert one.more()
        assert found == held[1][-1]
        while one.more():
            pass
        assert sorted(read) == sorted({0, 1, 2} - {place})
        names = {one.first(["cpu"]) for _ in range(3 * (SHORT + 1))}
        assert names == {name for n in range(3) for name in held[n][: SHORT + 1]}
        assert one.first(["cpu"]) is None
        read.clear()


def test_one_damaged_batch_costs_its_own_requests_only(tmp_path):
    mailbox, requests = FileMailbox(tmp_path, commit="link"), [request(i) for i in range(20)]
    mailbox.put_many(requests)
    paths = sorted((tmp_path / "new").iterdir())
    assert [p.stat().st_nlink for p in paths] == [BATCH_MAX] * BATCH_MAX + [4] * 4
    data = paths[0].read_bytes()
    # In place: all sixteen names show it.
    paths[0].write_bytes(data.replace(b"# 2", b"# x"))
    assert {c.request.request_id for c in mailbox.claim("w", CPU, 20)} == {
        r.request_id for r in requests if r is not requests[2]
    }
    assert mailbox.counts().dead == 1
    assert mailbox.put_many(requests[:4]) == (False, False, True, False)


@pytest.mark.parametrize(
    "first", [b"pike-hpc batch 1 x\n", b"pike-hpc batch 1 \n", b"pike-hpc batch 1 "]
)
def test_a_batch_that_lists_no_such_member_is_no_record(first):
    with pytest.raises(CodecError, match="batch"):
        member(first + b"rest", "a" * 32)


def test_members_of_a_batch_come_out_as_they_went_in():
    members = [(f"{i:032x}", b"record %d\n" % i * i) for i in range(5)]
    assert [member(pack(members), name) for name, _ in members] == [data for _, data in members]
    assert pack(members[:1]) == members[0][1]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": "x", "version": 1}', "null"])
def test_a_folder_that_is_no_mailbox_is_refused(tmp_path, text):
    (tmp_path / "FORMAT").write_text(text)
    with pytest.raises(UsageError, match="not a mailbox"):
        FileMailbox(tmp_path)


def test_all_who_open_a_mailbox_use_what_it_was_made_with(tmp_path):
    FileMailbox(tmp_path, commit="renameat2", lock="claims")
    FileMailbox(tmp_path, commit="link", lock="flock")
    form = json.loads((tmp_path / "FORMAT").read_text())
    assert (form["commit"], form["lock"]) == ("renameat2", "claims")


def test_a_file_in_the_way_is_a_usage_error(tmp_path):
    (tmp_path / "box").write_text("")
    with pytest.raises(UsageError):
        FileMailbox(tmp_path / "box" / "inner")


def test_a_mailbox_removed_in_use_is_one_clear_error(tmp_path):
    mailbox = FileMailbox(tmp_path / "box")
    shutil.rmtree(tmp_path / "box")
    for call in (lambda: mailbox.put(request(1)), lambda: mailbox.claim("w", CPU)):
        with pytest.raises(PikeError, match="mailbox is gone"):
            call()


FULL_DISK = """
import subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", sys.argv[1]], check=True)
from pike_hpc.mailbox import FileMailbox
from pike_hpc.records import EvalRequest, Task, TryAgainLater
mailbox = FileMailbox(Path(sys.argv[1]))
done = 0
try:
    for i in range(100):
        task = Task(suite="s", id="1", name="one", source="x" * 10000)
        mailbox.put(EvalRequest(task=task, candidate_source=str(i), device_kind="cpu",
                                image_digest="i"))
        done += 1
except TryAgainLater as error:
    print(error)
assert 0 < done < 100, done
assert mailbox.counts().new == done
assert list((Path(sys.argv[1]) / "tmp").iterdir()) == []
claims = mailbox.claim("w", frozenset({"cpu"}), 100)
assert len(claims) == done
"""


def test_a_full_disk_is_try_again_later_and_leaves_nothing_half_done(tmp_path):
    namespace = ["unshare", "--mount", "--map-root-user"]
    try:
        works = subprocess.run(
            [*namespace, "mount", "-t", "tmpfs", "none", str(tmp_path)],
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if works.returncode != 0:
        pytest.skip("this machine lets nobody mount a small tmpfs in a namespace")
    package = str(Path(sys.modules["pike_hpc"].__path__[0]).parent)
    argv = [*namespace, sys.executable, "-c", FULL_DISK, str(tmp_path), package]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "no space left for the mailbox" in done.stdout
    assert "next:" in done.stdout
    assert TryAgainLater.exit_code == 75


def test_names_of_tickets_and_holds_are_read_back():
    ticket = Ticket(sequence=7, device=slug("NVIDIA H200"), request_id="a" * 32, attempt=2)
    hold = Hold(ticket=ticket, holder="w~12ab", number=3, judging=True)
    assert Ticket.parse(ticket.name) == ticket
    assert Hold.parse(hold.name) == hold
    for foreign in ("", "x", ticket.name + ".json", hold.name + ".bak", ticket.name.upper()):
        assert Ticket.parse(foreign) is None
        assert Hold.parse(foreign) is None


def test_two_names_never_share_a_slug():
    names = ["cpu", "CPU", "a b", "a-b", "a/b", "a\nb", "", "-x", "é", "e", "x" * 60, "x" * 300]
    slugs = [slug(name) for name in names]
    assert len(set(slugs)) == len(names)
    assert all(0 < len(s) <= 80 and "/" not in s and "." not in s for s in slugs)


@pytest.mark.parametrize(
    ("kind", "shared"),
    [
        *((kind, False) for kind in ("ext4", "xfs", "tmpfs", "overlay")),
        *((kind, True) for kind in ("nfs4", "lustre", "gpfs", "fuse.sshfs", "newfs")),
    ],
)
def test_a_file_system_that_others_may_see_is_looked_at_less_often(tmp_path, kind, shared):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"21 1 0:20 / / rw - {kind} dev rw\n")
    assert is_shared(tmp_path, mounts) is shared


def test_on_a_shared_file_system_one_look_serves_for_a_second(tmp_path):
    now_s = [0.0]
    files = CountingFiles()
    worker = FileMailbox(tmp_path, clock=lambda: now_s[0], files=files, shared=True)
    agent = FileMailbox(tmp_path)
    agent.put(request(1))
    assert (worker.waiting(), worker.closed()) == (1, False)
    files.seen.clear()
    agent.close()
    agent.put(request(2))
    assert worker.waiting() == 1
    assert [c.request for c in worker.claim("w", CPU, 9)] == [request(1)]
    assert not worker.closed()
    assert "names" not in files.seen
    now_s[0] += 5.1
    assert worker.waiting() == 1
    assert worker.closed()


def test_long_queues_are_not_listed_for_every_claim(tmp_path):
    ticks = itertools.count()
    files = CountingFiles()
    FileMailbox(tmp_path).put_many([request(i) for i in range(SHORT + 100)])
    one = FileMailbox(tmp_path, files=files, clock=lambda: float(next(ticks)))
    other = FileMailbox(tmp_path)
    files.seen.clear()
    claims = [*one.claim("one", CPU, 3)]
    taken = [*other.claim("other", CPU, 256)]
    # What others took meanwhile is passed over without a look at each.
    claims += [c for _ in range(4) for c in one.claim("one", CPU, 2)]
    assert len(claims) == 11
    assert files.seen["names"] == 1
    assert files.seen["exists"] < 40
    order = {request(i).request_id: i for i in range(SHORT + 100)}
    assert max(order[c.request.request_id] for c in claims) < 3 * BLOCK
    while more := other.claim("other", CPU, 100):
        taken += more
    ids = [c.request.request_id for c in claims + taken]
    assert sorted(ids) == sorted(order)
    assert one.claim("one", CPU) == ()


@pytest.mark.parametrize("gone", [1, 2, 7, 100, 599])
@pytest.mark.parametrize("place", [0, 3, 40000])
def test_a_run_of_names_that_others_took_is_passed_over(gone, place):
    names = [f"{i:020d}.cpu.x" for i in range(600)]
    left, looks = set(), []
    line = Line(
        lambda _: names, lambda n: bool(looks.append(n)) or n in left, lambda: 0.0, place=place
    )
    line.look()
    order = [line.first(["cpu"]) for _ in range(600)]
    assert sorted(order) == names
    assert all(abs(names.index(n) - i) < BLOCK for i, n in enumerate(order))
    assert line.first(["cpu"]) is None
    left |= set(order[gone:])
    line.forget()
    line.look()
    assert line.first(["cpu"]) == order[0]
    line.skip_taken("cpu")
    assert line.first(["cpu"]) == order[gone]
    assert len(looks) <= 2 * gone.bit_length() + 2
    assert line.waiting() == 600 - gone - 1


class CountingFiles(Files):
    """Counts what is looked at."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def names(self, folder: Path) -> list[str]:
        self.seen["names"] += 1
        return super().names(folder)

    def exists(self, path: Path) -> bool:
        self.seen["exists"] += 1
        return super().exists(path)


def test_what_was_taken_when_the_disk_failed_is_told_by_the_next_claim(tmp_path):
    files = FaultyFiles(lambda: pytest.fail("nobody dies here"))
    mailbox, sent = FileMailbox(tmp_path, files=files), [request(i) for i in range(3)]
    mailbox.put_many(sent)
    files.armed = True
    # Taking is one step, reading the next: the second request's fails.
    files.plan(3, "EIO")
    assert [c.request for c in mailbox.claim("w", CPU, 3)] == sent[:1]
    files.plan(0, "EIO")
    with pytest.raises(TryAgainLater, match="does not answer"):
        mailbox.claim("w", CPU, 3)
    assert [c.request for c in mailbox.claim("w", CPU, 3)] == sent[1:]

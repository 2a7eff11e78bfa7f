import errno
import os
import zlib

import pytest

from pike_hpc.journal import (
    OsDisk,
    TaskJournal,
    controller_of,
    journal_digest,
    read_task,
    task_slug,
    task_slugs,
)
from pike_hpc.records import (
    Brainstormed,
    ControllerStarted,
    Finished,
    PikeError,
    TryAgainLater,
    UsageError,
)


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        self.now += 1.0
        return self.now


class FaultyDisk(OsDisk):
    """Fails once at the operation named, having done what `half` says of it."""

    def __init__(self, operation, number=0, half=False, code=errno.ENOSPC):
        self.operation, self.number, self.half, self.code = operation, number, half, code

    def _fails(self, operation):
        if operation != self.operation:
            return False
        self.number -= 1
        return self.number == -1

    def create(self, path):
        if self._fails("create"):
            raise OSError(self.code, os.strerror(self.code))
        return super().create(path)

    def write(self, fd, data, offset):
        if self._fails("write"):
            if self.half:
                super().write(fd, data[: len(data) // 2], offset)
            raise OSError(self.code, os.strerror(self.code))
        return super().write(fd, data, offset)

    def sync(self, fd):
        if self._fails("sync"):
            raise OSError(self.code, os.strerror(self.code))
        super().sync(fd)


class DribblingDisk(OsDisk):
    """Takes seven bytes at a time."""

    def write(self, fd, data, offset):
        return super().write(fd, data[:7], offset)


class CountingDisk(OsDisk):
    def __init__(self):
        self.syncs = 0

    def sync(self, fd):
        self.syncs += 1
        super().sync(fd)


def open_journal(run, slug="s_1", writer="w", **options):
    return TaskJournal.open(run, slug, writer=writer, seed=5, clock=Clock(), **options)


def idea(number):
    return Brainstormed(node=f"n{number}", ideas=(str(number),))


def nodes(events):
    return [e.event.node for e in events if isinstance(e.event, Brainstormed)]


def segment(run, epoch):
    (found,) = (run / "journal").glob(f"*.e{epoch:06d}.*.jsonl")
    return found


def test_the_first_epoch_begins_with_its_start(tmp_path):
    with open_journal(tmp_path) as journal:
        assert journal.epoch == 1
        (first,) = journal.events
        assert first.event == ControllerStarted(epoch=1, writer="w", inherited={}, seed=5)
        assert 1000.0 < first.time < 1010.0
    assert segment(tmp_path, 1).name == "s_1.e000001.w.jsonl"


def test_a_second_controller_replays_and_goes_on(tmp_path):
    with open_journal(tmp_path) as journal:
        journal.append(idea(1))
        journal.append(idea(2))
    with open_journal(tmp_path, writer="other host/7") as journal:
        assert nodes(journal.events) == ["n1", "n2"]
        journal.append(idea(3))
        started = journal.events[3].event
        assert started.inherited == {"s_1.e000001.w.jsonl": 3}
        assert started.writer == "other host/7"
        assert journal.events == read_task(tmp_path, "s_1")
    assert segment(tmp_path, 2).name == "s_1.e000002.other-host-7.jsonl"


def test_what_a_zombie_writes_after_a_takeover_does_not_count(tmp_path):
    zombie = open_journal(tmp_path, writer="zombie")
    zombie.append(idea(1))
    # A broken lock server: the next controller gets in although the first one still writes.
    (tmp_path / "journal" / "locks" / "s_1.lock").unlink()
    with open_journal(tmp_path, writer="heir") as heir:
        zombie.append(idea(666))
        heir.append(idea(2))
        assert nodes(read_task(tmp_path, "s_1")) == ["n1", "n2"]
    zombie.append(idea(667))
    zombie.close()
    with open_journal(tmp_path, writer="third") as third:
        assert nodes(third.events) == ["n1", "n2"]
    assert nodes(read_task(tmp_path, "s_1")) == ["n1", "n2"]


def test_damage_beyond_what_was_inherited_does_not_matter(tmp_path):
    with open_journal(tmp_path, writer="a") as journal:
        journal.append(idea(1))
    with open_journal(tmp_path, writer="b"):
        pass
    with segment(tmp_path, 1).open("ab") as stream:
        stream.write(b"zombie noise\nmore noise\n")
    assert nodes(read_task(tmp_path, "s_1")) == ["n1"]


def test_a_held_task_names_its_holder(tmp_path):
    with open_journal(tmp_path, writer="agent on n17"):
        with pytest.raises(TryAgainLater, match="agent on n17") as error:
            open_journal(tmp_path)
        assert str(os.getpid()) in str(error.value)
        open_journal(tmp_path, slug="s_2").close()
    open_journal(tmp_path).close()


def test_watchers_see_the_controller_and_not_a_past_one(tmp_path):
    assert controller_of(tmp_path, "s_1") is None
    with open_journal(tmp_path, writer="agent"):
        assert controller_of(tmp_path, "s_1").writer == "agent"
        assert controller_of(tmp_path, "s_2") is None
    assert controller_of(tmp_path, "s_1") is None


def test_a_refused_open_leaves_nothing(tmp_path):
    with open_journal(tmp_path):
        before = journal_digest(tmp_path)
        with pytest.raises(TryAgainLater):
            open_journal(tmp_path)
        assert journal_digest(tmp_path) == before


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_is_ignored_and_reported(tmp_path, cut):
    with open_journal(tmp_path) as journal:
        journal.append(idea(1))
        journal.append(idea(2))
    path = segment(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:-cut])
    assert nodes(read_task(tmp_path, "s_1")) == ["n1"]
    with open_journal(tmp_path) as journal:
        assert nodes(journal.events) == ["n1"]
        assert journal.torn["s_1.e000001.w.jsonl"] > 0
        journal.append(idea(3))
    assert nodes(read_task(tmp_path, "s_1")) == ["n1", "n3"]


def test_a_corrupt_line_in_the_middle_names_file_and_line(tmp_path):
    with open_journal(tmp_path) as journal:
        journal.append(idea(1))
        journal.append(idea(2))
    path = segment(tmp_path, 1)
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1].replace(b"n1", b"nX")
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(PikeError, match="line 2") as error:
        read_task(tmp_path, "s_1")
    assert path.name in str(error.value)
    assert "next:" in str(error.value)
    with pytest.raises(PikeError, match="line 2"):
        open_journal(tmp_path)
    assert len(list((tmp_path / "journal").glob("*.jsonl"))) == 1


def test_a_removed_line_is_noticed(tmp_path):
    with open_journal(tmp_path) as journal:
        journal.append(idea(1))
        journal.append(idea(2))
    path = segment(tmp_path, 1)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join(lines[:1] + lines[2:]) + b"x")
    with pytest.raises(PikeError, match="line 2"):
        read_task(tmp_path, "s_1")


def test_a_lost_segment_is_noticed(tmp_path):
    with open_journal(tmp_path, writer="a") as journal:
        journal.append(idea(1))
    open_journal(tmp_path, writer="b").close()
    segment(tmp_path, 1).unlink()
    with pytest.raises(PikeError, match="0 of the 2 events"):
        read_task(tmp_path, "s_1")


def test_another_version_names_the_upgrade(tmp_path):
    folder = tmp_path / "journal"
    folder.mkdir()
    (folder / "s_1.e000001.w.jsonl").write_bytes(b'{"v":2,"n":0}\n')
    with pytest.raises(UsageError, match="upgrade"):
        read_task(tmp_path, "s_1")
    with pytest.raises(UsageError, match="format 2"):
        open_journal(tmp_path)


def test_an_unknown_event_is_another_version(tmp_path):
    open_journal(tmp_path).close()
    path = segment(tmp_path, 1)
    body = b'{"v":1,"n":1,"t":0.0,"k":"Teleported","e":{}'
    path.write_bytes(path.read_bytes() + body + b',"c":"%08x"}\n' % zlib.crc32(body))
    with pytest.raises(UsageError, match="Teleported"):
        read_task(tmp_path, "s_1")


def test_a_segment_without_a_first_event_is_passed_over(tmp_path):
    with open_journal(tmp_path) as journal:
        journal.append(idea(1))
    (tmp_path / "journal" / "s_1.e000002.dead.jsonl").write_bytes(b'{"v":1,"n":0,"t"')
    assert nodes(read_task(tmp_path, "s_1")) == ["n1"]
    with open_journal(tmp_path) as journal:
        assert journal.epoch == 3
        assert nodes(journal.events) == ["n1"]


@pytest.mark.parametrize("half", [False, True])
def test_a_full_disk_while_appending_is_told_and_nothing_half_written_counts(tmp_path, half):
    disk = FaultyDisk("write", number=2, half=half)
    with open_journal(tmp_path, disk=disk) as journal:
        journal.append(idea(1))
        with pytest.raises(TryAgainLater, match="No space left"):
            journal.append(Brainstormed(node="n2", ideas=("long " * 1000,)))
        assert nodes(journal.events) == ["n1"]
        assert segment(tmp_path, 1).read_bytes().endswith(b"}\n")
        journal.append(idea(3))
        assert nodes(read_task(tmp_path, "s_1")) == ["n1", "n3"]


def test_after_a_failed_sync_only_durable_events_count(tmp_path):
    disk = FaultyDisk("sync", number=2)
    journal = open_journal(tmp_path, disk=disk)
    journal.append(idea(1))
    journal.append(idea(2), durable=False)
    with pytest.raises(TryAgainLater):
        journal.append(idea(3))
    with pytest.raises(TryAgainLater, match="no more events"):
        journal.append(idea(4))
    assert nodes(journal.events) == ["n1"]
    journal.close()
    with open_journal(tmp_path) as journal:
        assert nodes(journal.events) == ["n1"]


@pytest.mark.parametrize("operation", ["create", "write", "sync"])
def test_a_full_disk_while_opening_lets_the_next_one_in(tmp_path, operation):
    with pytest.raises(TryAgainLater, match="No space left"):
        open_journal(tmp_path, disk=FaultyDisk(operation))
    with open_journal(tmp_path) as journal:
        journal.append(idea(1))
    assert nodes(read_task(tmp_path, "s_1")) == ["n1"]


def test_partial_writes_are_continued(tmp_path):
    with open_journal(tmp_path, disk=DribblingDisk()) as journal:
        journal.append(idea(1))
    assert nodes(read_task(tmp_path, "s_1")) == ["n1"]


def test_group_commit_syncs_once(tmp_path):
    disk = CountingDisk()
    with open_journal(tmp_path, disk=disk) as journal:
        before = disk.syncs
        for number in range(50):
            journal.append(idea(number), durable=False)
        assert disk.syncs == before
        journal.sync()
        journal.sync()
        assert disk.syncs == before + 1
        journal.append(idea(50))
        assert disk.syncs == before + 2


def test_close_twice_and_append_after(tmp_path):
    journal = open_journal(tmp_path)
    journal.close()
    journal.close()
    with pytest.raises(TryAgainLater, match="closed"):
        journal.append(Finished(reason="x"))


def test_an_event_that_is_no_json_leaves_the_journal_whole(tmp_path):
    with open_journal(tmp_path) as journal:
        with pytest.raises(ValueError):
            journal.append(ControllerStarted(epoch=float("nan"), writer="w"))
        journal.append(idea(1))
    assert nodes(read_task(tmp_path, "s_1")) == ["n1"]


def test_tasks_do_not_see_each_other(tmp_path):
    # One slug is the other's beginning, and dots are allowed in a file's stem.
    for slug in ("s_1", "s_10", "s_1.e000009.w"):
        with open_journal(tmp_path, slug=slug) as journal:
            journal.append(Brainstormed(node=slug, ideas=()))
    assert task_slugs(tmp_path) == ("s_1", "s_1.e000009.w", "s_10")
    for slug in task_slugs(tmp_path):
        assert nodes(read_task(tmp_path, slug)) == [slug]


def test_the_digest_moves_with_every_event(tmp_path):
    seen = {journal_digest(tmp_path)}
    with open_journal(tmp_path) as journal:
        seen.add(journal_digest(tmp_path))
        journal.append(idea(1))
        seen.add(journal_digest(tmp_path))
    assert len(seen) == 3
    assert journal_digest(tmp_path) in seen


def test_slugs(tmp_path):
    assert task_slug("level3-pike/4") == "level3-pike_4"
    for bad in ("", "../x", ".hidden", "a\0b", "x" * 200):
        with pytest.raises(UsageError):
            open_journal(tmp_path, slug=bad)
    assert not (tmp_path / "journal").exists()


def test_reading_a_task_that_never_began(tmp_path):
    with open_journal(tmp_path):
        pass
    assert read_task(tmp_path, "s_2") == ()
    assert read_task(tmp_path / "nowhere", "s_1") == ()
    with pytest.raises(UsageError):
        read_task(tmp_path, "../s_1")
    assert task_slugs(tmp_path / "nowhere") == ()


def test_a_run_folder_that_is_a_file(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(UsageError):
        open_journal(tmp_path / "run")


def test_events_that_were_taken_are_no_longer_kept_and_lose_no_place(tmp_path):
    with open_journal(tmp_path) as journal:
        journal.append(Brainstormed(node="a", ideas=("x",)))
        taken = journal.take_events()
        assert [s.seq for s in taken] == [0, 1]
        assert journal.events == ()
        assert journal.append(Finished(reason="b")).seq == 2
        assert [s.seq for s in journal.events] == [2]
    assert [s.seq for s in read_task(tmp_path, "s_1")] == [0, 1, 2]


def test_a_controller_that_said_nothing_may_leave_no_segment(tmp_path):
    open_journal(tmp_path).close()
    idle = open_journal(tmp_path)
    assert idle.idle
    idle.take_events()
    assert idle.idle
    idle.close(keep_idle=False)
    assert [s.epoch for s in read_task(tmp_path, "s_1")] == [1]
    busy = open_journal(tmp_path)
    busy.append(Finished(reason="b"))
    assert not busy.idle
    busy.close(keep_idle=False)
    assert [s.epoch for s in read_task(tmp_path, "s_1")] == [1, 2, 2]


def test_a_segment_that_somebody_went_on_from_is_kept(tmp_path):
    first = open_journal(tmp_path)
    heir = tmp_path / "journal" / "s_1.e000002.zombie.jsonl"
    heir.touch()
    first.close(keep_idle=False)
    assert [s.epoch for s in read_task(tmp_path, "s_1")] == [1]

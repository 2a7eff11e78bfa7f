"""A snapshot is used only beside the very bytes that it was made of, and only whole."""

import errno
import os

import pytest

from pike_hpc.journal import OsDisk, TaskJournal, read_task
from pike_hpc.records import Brainstormed, PikeError


def open_journal(run, writer="w", made_by="me", **options):
    return TaskJournal.open(
        run, "s_1", writer=writer, seed=5, clock=lambda: 1.0, made_by=made_by, **options
    )


def idea(number):
    return Brainstormed(node=f"n{number}", ideas=(str(number),))


def nodes(events):
    return [e.event.node for e in events if isinstance(e.event, Brainstormed)]


def segment(run, epoch):
    (found,) = (run / "journal").glob(f"*.e{epoch:06d}.*.jsonl")
    return found


@pytest.fixture
def run(tmp_path):
    """Two events, a snapshot of them, and one event more."""
    with open_journal(tmp_path) as journal:
        journal.append(idea(1))
        journal.append(idea(2))
        journal.save(b"n1 n2")
        journal.append(idea(3))
    return tmp_path


def test_the_next_one_reads_only_what_follows(run):
    with open_journal(run) as journal:
        assert journal.snapshot == b"n1 n2"
        assert nodes(journal.events) == ["n3"]
        assert journal.events[-1].event.inherited == {"s_1.e000001.w.jsonl": 4}
        journal.append(idea(4))
        journal.save(b"n1 to n4")
    with open_journal(run) as journal:
        assert journal.snapshot == b"n1 to n4"
        assert nodes(journal.events) == []
    assert nodes(read_task(run, "s_1")) == ["n1", "n2", "n3", "n4"]


def test_what_was_before_an_epoch_can_be_kept_without_it(run):
    with open_journal(run) as journal:
        journal.save(b"all before", own=False)
        journal.close(keep_idle=False)
    assert len(list((run / "journal").glob("*.jsonl"))) == 1, "it had nothing to say"
    with open_journal(run) as journal:
        assert journal.snapshot == b"all before"
        assert nodes(journal.events) == []


@pytest.mark.parametrize("maker", ["", "somebody else"])
def test_another_ones_is_not_used(run, maker):
    with open_journal(run, made_by=maker) as journal:
        assert journal.snapshot is None
        assert nodes(journal.events) == ["n1", "n2", "n3"]


def test_one_that_is_damaged_anywhere_is_not_used(run):
    path = run / "journal" / "s_1.snapshot"
    whole = path.read_bytes()
    torn = [whole[:length] for length in (0, 10, len(whole) // 2, len(whole) - 1)]
    flipped = [
        whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, len(whole), 7)
    ]
    for damaged in (*torn, *flipped):
        path.write_bytes(damaged)
        with open_journal(run) as journal:
            assert journal.snapshot is None
            assert nodes(journal.events) == ["n1", "n2", "n3"]
            journal.close(keep_idle=False)


def test_a_changed_segment_is_read_in_full_and_its_damage_told(run):
    path = segment(run, 1)
    path.write_bytes(path.read_bytes().replace(b'"n1"', b'"nX"'))
    with pytest.raises(PikeError, match="line 2"):
        open_journal(run)


def test_a_segment_cut_by_a_person_is_read_in_full(run):
    path = segment(run, 1)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]))
    with open_journal(run) as journal:
        assert journal.snapshot is None
        assert nodes(journal.events) == ["n1"]
        journal.append(idea(9))
    with open_journal(run) as journal:
        assert journal.snapshot is None, "it tells of events that no longer count"
        assert nodes(journal.events) == ["n1", "n9"]


def test_what_a_zombie_leaves_is_not_used(tmp_path):
    zombie = open_journal(tmp_path, writer="zombie")
    zombie.append(idea(1))
    (tmp_path / "journal" / "locks" / "s_1.lock").unlink()
    with open_journal(tmp_path, writer="heir") as heir:
        zombie.append(idea(666))
        zombie.save(b"n1 n666")
        heir.append(idea(2))
    zombie.close()
    with open_journal(tmp_path, writer="third") as third:
        assert third.snapshot is None
        assert nodes(third.events) == ["n1", "n2"]


def test_a_lost_segment_is_noticed_beside_a_snapshot_too(run):
    with open_journal(run, writer="b") as journal:
        journal.append(idea(4))
        journal.save(b"all")
    segment(run, 1).unlink()
    with pytest.raises(PikeError, match="0 of the 4 events"):
        open_journal(run)


class FullDisk(OsDisk):
    """Takes no snapshot."""

    def create(self, path):
        if "snapshot" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().create(path)


def test_a_disk_without_room_for_a_snapshot_is_no_error(run, caplog):
    with open_journal(run, disk=FullDisk()) as journal:
        journal.append(idea(4))
        journal.save(b"new")
    assert "no snapshot of s_1" in caplog.text
    with open_journal(run) as journal:
        assert journal.snapshot == b"n1 n2"
        assert nodes(journal.events) == ["n3", "n4"]


def test_an_event_is_read_again_from_its_place(run):
    with open_journal(run) as journal:
        journal.append(idea(4))
        for stamped in journal.events:
            assert journal.read(stamped.place) == stamped.event
    path, place = segment(run, 1), journal.events[0].place
    path.write_bytes(path.read_bytes().replace(b'"n3"', b'"nX"'))
    with pytest.raises(PikeError, match="line 4"):
        journal.read(place)

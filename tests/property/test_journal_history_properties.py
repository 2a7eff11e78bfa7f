"""Any interleaving of append, sync, crash and reopen replays a prefix-consistent history.

The disk of this test keeps what a power failure keeps: synced bytes, any part of the others,
and no name whose folder was not synced.
"""

import contextlib
import itertools
import os
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from pike_hpc.journal import OsDisk, Stamped, TaskJournal, read_task, task_slugs
from pike_hpc.journal.line import from_line, to_line
from pike_hpc.records import (
    Brainstormed,
    ControllerStarted,
    Declined,
    Finished,
    Proposal,
    Proposed,
    QueryAnswered,
    Usage,
)

TEXT = st.text(st.characters(exclude_categories=()), max_size=40)
TIMES = st.floats(allow_nan=False, allow_infinity=False)
EVENTS = st.one_of(
    st.builds(Brainstormed, node=TEXT, ideas=st.lists(TEXT).map(tuple)),
    st.builds(Finished, reason=TEXT),
    st.builds(Declined, node=TEXT, operator=TEXT, reason=TEXT),
    st.builds(
        ControllerStarted,
        epoch=st.integers(),
        writer=TEXT,
        inherited=st.dictionaries(TEXT, st.integers()),
        seed=st.integers(),
    ),
    st.builds(
        Proposed,
        node=TEXT,
        source=TEXT,
        proposal=st.builds(
            Proposal,
            candidate_id=TEXT,
            operator=TEXT,
            parent_ids=st.lists(TEXT).map(tuple),
            branch=st.none() | st.integers(),
        ),
    ),
    st.builds(
        QueryAnswered,
        query_id=TEXT,
        text=TEXT,
        finish_reason=TEXT,
        usage=st.builds(Usage, model=TEXT, cost_usd=TIMES),
        latency_s=TIMES,
    ),
)


class PowerFailure(BaseException):
    pass


class FailingDisk(OsDisk):
    """Stops at a chosen operation; `settle` then leaves on disk what a real one might."""

    def __init__(self, operations_left):
        self.left = operations_left
        self.sizes = {}
        self.unsynced_names = set()
        self.paths = {}

    def _step(self):
        if self.left <= 0:
            raise PowerFailure
        self.left -= 1

    def create(self, path):
        self._step()
        fd = super().create(path)
        self.paths[fd] = path
        self.sizes[path] = 0
        self.unsynced_names.add(path)
        return fd

    def write(self, fd, data, offset):
        try:
            self._step()
        except PowerFailure:
            super().write(fd, data[: len(data) // 2], offset)
            raise
        return super().write(fd, data, offset)

    def sync(self, fd):
        self._step()
        super().sync(fd)
        self.sizes[self.paths[fd]] = os.fstat(fd).st_size

    def sync_folder(self, folder):
        self._step()
        super().sync_folder(folder)
        self.unsynced_names -= {p for p in self.unsynced_names if p.parent == folder}

    def close(self, fd):
        super().close(fd)

    def settle(self, keep):
        """keep in 0…1: the part of the unsynced bytes that reached the disk."""
        for path, synced in self.sizes.items():
            if path in self.unsynced_names and keep < 0.5:
                path.unlink(missing_ok=True)
            elif path.exists():
                size = path.stat().st_size
                os.truncate(path, synced + int(keep * (size - synced)))


LIVES = st.lists(
    st.tuples(
        st.lists(st.booleans(), max_size=6),  # durable or not, one append each
        st.integers(0, 14),  # operations until the power fails
        st.floats(0, 1),
    ),
    max_size=6,
)


def live(run, numbers, durable_flags, disk):
    """One controller's life: what it was told is durable, and all it tried."""
    acked, pending, tried = [], [], []
    journal = None
    try:
        journal = TaskJournal.open(run, "t", writer="w", seed=0, clock=lambda: 0.0, disk=disk)
        for durable in durable_flags:
            number = next(numbers)
            tried.append(number)
            pending.append(number)
            journal.append(Brainstormed(node=str(number), ideas=()), durable=durable)
            if durable:
                acked += pending
                pending = []
        journal.close()
        acked += pending
    except PowerFailure:
        if journal is not None:
            with contextlib.suppress(PowerFailure):
                journal.close()
    return acked, tried


def replayed(run):
    if "t" not in task_slugs(run):
        return []
    return [int(e.event.node) for e in read_task(run, "t") if isinstance(e.event, Brainstormed)]


@settings(max_examples=150)
@given(LIVES)
def test_every_durable_event_survives_and_nothing_is_reordered(lives):
    with tempfile.TemporaryDirectory() as folder:
        run, numbers = Path(folder), itertools.count()
        history = []
        for durable_flags, operations, keep in lives:
            disk = FailingDisk(operations)
            acked, tried = live(run, numbers, durable_flags, disk)
            disk.settle(keep)
            now = replayed(run)
            assert now[: len(history)] == history, "an inherited event changed or vanished"
            new = now[len(history) :]
            assert new == tried[: len(new)], "the new events are no prefix of those appended"
            assert new[: len(acked)] == acked, "a durable event is lost"
            history = now
        with TaskJournal.open(run, "t", writer="w", seed=0, clock=lambda: 0.0) as journal:
            assert tuple(journal.events) == read_task(run, "t")
            assert replayed(run) == history


@given(EVENTS, TIMES, st.integers(0, 9))
def test_any_event_reads_back_exactly(event, time, seq):
    stamped = Stamped(time=time, epoch=2, seq=seq, event=event)
    line = to_line(stamped)
    assert line.count(b"\n") == 1
    assert from_line(line[:-1], epoch=2, seq=seq) == stamped

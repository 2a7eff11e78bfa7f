"""Which blocks count, how long one waits for a better GPU, and what the record says."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pike_hpc.evaluate.nvml import HARDWARE, POWER_CAP, Sample
from pike_hpc.evaluate.nvml_guard import (
    DISCARDS,
    LEAST,
    MIN_CLOCK,
    PAUSES_S,
    USUAL,
    Guard,
    History,
    Patience,
    faults,
    unread,
)
from pike_hpc.evaluate.nvml_simulated import Sensors, SimulatedNvml
from pike_hpc.records import Clocks

OURS = frozenset({10, 11, 12})


def look(sm_mhz=1980, reasons=0, processes=OURS, **values):
    return Sample(sm_mhz=sm_mhz, reasons=reasons, processes=processes, **values)


class Bench:
    """A guard, the looks it will have, and how long it slept."""

    def __init__(self, history=None, first=None):
        self.now = first or look()
        self.slept = []
        self.guard = Guard(self._read, history or History(), self.slept.append)
        self.guard.begin()

    def _read(self, processes):
        return self.now if processes else dataclasses.replace(self.now, processes=None)

    def block(self, now=None, *, reference_last=True):
        self.guard.before()
        self.now = now or self.now
        return self.guard.after(reference_last=reference_last)


def test_a_steady_gpu_discards_nothing():
    bench = Bench()
    assert all(bench.block(reference_last=bool(i % 2)) for i in range(20))
    assert bench.slept == []
    assert not bench.guard.worn


@pytest.mark.parametrize("bit", [0x8, 0x40, 0x80])
def test_a_hardware_slowdown_discards(bit):
    bench = Bench()
    assert not bench.block(look(reasons=bit))
    assert bench.guard.why.startswith("hw_")
    assert not bench.block(look())  # still on when it began
    assert bench.block(look())


def test_what_the_load_does_itself_discards_nothing():
    bench = Bench()
    assert all(bench.block(look(1980)) for _ in range(LEAST))
    assert bench.block(look(1300, reasons=POWER_CAP))
    assert bench.block(look(1980, reasons=0x20))


def test_a_process_that_comes_discards_until_it_goes():
    bench = Bench()
    assert not bench.block(look(processes=OURS | {99}))
    assert not bench.block(look(processes=OURS))
    assert bench.block(look(processes=OURS))
    assert bench.block(look(processes=OURS - {10}))
    assert bench.guard.clocks().discarded == 2


def test_one_that_left_before_the_next_block_spoils_that_no_more():
    bench = Bench()
    assert not bench.block(look(processes=OURS | {99}))
    bench.now = look()
    assert bench.block()


def test_a_list_that_fails_once_is_asked_for_again():
    bench = Bench()
    assert bench.block(look(processes=None))
    bench.now = look(processes=OURS | {99})
    assert not bench.block(look())


def test_processes_are_listed_once_a_block():
    machine = SimulatedNvml(Sensors(computing=(1, 2)))
    guard = Guard(machine.gpu().sample, History())
    guard.begin()
    for _ in range(3):
        guard.before()
        assert guard.after(reference_last=True)
    assert machine.calls.count("nvmlDeviceGetComputeRunningProcesses_v3") == 1 + 3
    assert machine.calls.count("nvmlDeviceGetClockInfo") == 1 + 2 * 3


def test_who_was_there_before_belongs_there():
    bench = Bench(first=look(processes=OURS | {1}))
    assert bench.block(look(processes=OURS | {1}))


def test_a_clock_under_nine_tenths_of_the_usual_discards_once_the_usual_is_known():
    bench = Bench()
    assert bench.block(look(1000))
    bench = Bench()
    assert all(bench.block(look(2000)) for _ in range(LEAST))
    assert bench.block(look(1800))
    assert not bench.block(look(1799))
    assert bench.guard.why == "SM clock at 1799 of 2000 MHz"


def test_each_side_has_a_clock_of_its_own():
    bench = Bench()
    for _ in range(6):
        assert bench.block(look(1980), reference_last=True)
        assert bench.block(look(1400), reference_last=False)


def test_the_clock_of_the_reference_is_known_from_earlier_candidates():
    history = History()
    first = Bench(history)
    assert all(first.block(look(1980)) for _ in range(LEAST))
    second = Bench(history)
    assert second.block(look(1500), reference_last=False)
    assert not second.block(look(1500), reference_last=True)


def test_a_clock_that_stays_lower_becomes_the_usual():
    bench = Bench()
    for _ in range(USUAL):
        bench.block(look(1980))
    kept = [bench.block(look(1500)) for _ in range(2 * USUAL)]
    assert not kept[0]
    assert all(kept[USUAL:])
    assert not bench.guard.worn


def test_a_lane_that_does_not_calm_down_wears_the_guard():
    bench = Bench()
    while not bench.guard.worn:
        assert not bench.block(look(reasons=0x40))
    assert tuple(bench.slept) == PAUSES_S
    assert bench.guard.clocks().discarded == DISCARDS * (len(PAUSES_S) + 1)


def test_the_record_says_what_was_seen():
    bench = Bench()
    bench.block(look(1980, temperature_c=50, power_w=500.0))
    bench.block(look(1900, reasons=POWER_CAP | 0x1, temperature_c=61, power_w=698.5))
    bench.block(look(1700, reasons=0x40, temperature_c=60, power_w=600.0))
    assert bench.guard.clocks() == Clocks(
        sm_mhz=1900,
        lowest_sm_mhz=1700,
        slowdowns=("sw_power_cap", "hw_thermal"),
        temperature_c=61,
        power_w=698.5,
        discarded=1,
    )


def test_where_nothing_can_be_read_everything_counts_and_nothing_is_said():
    guard = Guard(unread, History(), lambda _: pytest.fail("waited"))
    for last in (True, False) * 20:
        guard.before()
        assert guard.after(reference_last=last)
    assert guard.clocks() is None


def test_a_reference_off_its_usual_latency_is_drift():
    history = History()
    assert all(history.agrees(ms) for ms in (10.0, 10.05, 9.95, 10.0, 30.0)), "too little is known"
    assert history.agrees(10.19)
    assert not history.agrees(10.5)
    assert not history.agrees(9.5)


def test_what_varies_by_itself_may_vary():
    history = History()
    for ms in (10.0, 11.0, 9.0, 10.5, 9.5):
        history.agrees(ms)
    assert history.agrees(11.0)


def test_a_latency_near_the_protocol_s_constant_may_be_off_by_its_error():
    history = History()
    assert all(history.agrees(0.05) for _ in range(5))
    assert history.agrees(0.0549)
    assert not history.agrees(0.06)


def test_a_drift_that_stays_becomes_the_usual():
    history = History()
    for _ in range(USUAL):
        history.agrees(10.0)
    found = [history.agrees(11.0) for _ in range(USUAL)]
    assert not found[0]
    assert found[-1]


looks = st.builds(
    Sample,
    sm_mhz=st.none() | st.integers(1, 3000),
    reasons=st.none() | st.integers(0, 0x1FF),
    processes=st.none() | st.frozensets(st.integers(1, 5)),
)


@given(looks, looks, st.none() | st.frozensets(st.integers(1, 5)), st.none() | st.floats(1, 3000))
def test_a_fault_has_a_cause_and_a_cause_is_a_fault(before, after, known, usual_mhz):
    hardware = ((before.reasons or 0) | (after.reasons or 0)) & HARDWARE
    there = (before.processes or frozenset()) | (after.processes or frozenset())
    foreign = known is not None and not there <= known
    slow = bool(
        usual_mhz
        and after.sm_mhz
        and after.sm_mhz < MIN_CLOCK * usual_mhz
        and not (after.reasons or 0) & POWER_CAP
    )
    found = faults(before, after, known, usual_mhz)
    assert bool(found) == bool(hardware or foreign or slow)


@given(st.integers(0, 50))
def test_patience_is_bounded(discards):
    patience = Patience()
    waited = [patience.discard() for _ in range(discards)]
    assert sum(waited) <= sum(PAUSES_S)
    assert patience.worn == (discards >= DISCARDS * (len(PAUSES_S) + 1))
    pauses = [s for s in waited if s]
    assert pauses == list(PAUSES_S[: len(pauses)])


@given(st.lists(looks, max_size=40), st.booleans())
def test_a_guard_takes_whatever_it_reads(seen, reference_last):
    feed = iter(seen)
    guard = Guard(lambda _: next(feed, Sample()), History(), lambda _: None)
    kept = 0
    for _ in range(len(seen) // 2):
        guard.before()
        kept += guard.after(reference_last=reference_last)
    found = guard.clocks()
    assert kept + (found.discarded if found else 0) == len(seen) // 2

"""Alone on the device: others' kernels are waited for, their candidates killed where they go on."""

import pytest

pytest.importorskip("torch")

from pike_hpc.evaluate.judge_drain import ATTEMPTS, PATIENCE_S, Beside, Company, Solitude

pytestmark = pytest.mark.torch

SLICE_S = 0.002


class SlicedGpu:
    """A GPU with a neighbour whose kernels end at `busy_until_s`, in slices of 2 ms each."""

    def __init__(self, busy_until_s: float = 0.0) -> None:
        self.now = 0.0
        self.busy_until_s = busy_until_s
        self.hiccup_at_s = float("inf")

    def clock(self) -> float:
        return self.now

    def probe(self) -> float:
        took_s = 20e-6
        turn = int(self.now / SLICE_S) % 2
        if self.now < self.busy_until_s and turn:
            took_s += SLICE_S - self.now % SLICE_S
        if self.now >= self.hiccup_at_s:
            took_s, self.hiccup_at_s = 3e-3, float("inf")
        self.now += took_s
        return took_s * 1e3


class Lane:
    """What the judge asks of its host."""

    def __init__(self, gpu: SlicedGpu, evicting_helps: bool = True, restless: int = 0) -> None:
        self.said: list[str] = []
        self._gpu, self._helps, self._restless = gpu, evicting_helps, restless

    def phase(self, name: str) -> None:
        self.said.append(name)

    def alone(self, runners) -> None:
        self.said.append(f"alone {list(runners)}")

    def together(self) -> bool:
        self.said.append("together")
        self._restless -= 1
        return self._restless < 0

    def evict(self) -> None:
        self.said.append("evict")
        if self._helps:
            self._gpu.busy_until_s = self._gpu.now


def during(gpu: SlicedGpu, lane: Lane, measure=lambda: 7):
    return Solitude(lane, Company(gpu.probe, gpu.clock)).during((1, 2), measure)


def test_an_idle_gpu_is_had_within_a_few_hundredths_of_a_second():
    gpu = SlicedGpu()
    lane = Lane(gpu)
    assert during(gpu, lane) == (7, Beside.NOBODY)
    assert lane.said == ["gate", "alone [1, 2]", "timing", "together", "checks"]
    assert gpu.now < 0.05


def test_kernels_that_end_are_waited_for():
    gpu = SlicedGpu(busy_until_s=1.0)
    lane = Lane(gpu)
    at: list[float] = []
    assert during(gpu, lane, lambda: at.append(gpu.now)) == (None, Beside.NOBODY)
    assert at[0] > 1.0
    assert "evict" not in lane.said


def test_kernels_that_go_on_cost_their_candidate_its_life():
    gpu = SlicedGpu(busy_until_s=1e9)
    lane = Lane(gpu)
    assert during(gpu, lane) == (7, Beside.NOBODY)
    assert lane.said.count("evict") == 1
    assert PATIENCE_S < gpu.now < PATIENCE_S + 0.1


def test_a_gpu_that_never_rests_is_said_at_once():
    gpu = SlicedGpu(busy_until_s=1e9)
    lane = Lane(gpu, restless=ATTEMPTS, evicting_helps=False)
    assert during(gpu, lane) == (7, Beside.KERNELS)
    assert lane.said.count("evict") == lane.said.count("together") == 1


def test_an_interrupt_of_the_host_is_no_neighbour():
    gpu = SlicedGpu()
    gpu.hiccup_at_s = 0.01
    lane = Lane(gpu)
    assert during(gpu, lane) == (7, Beside.NOBODY)
    assert gpu.now < 0.05


@pytest.mark.parametrize(("restless", "measured"), [(1, 2), (ATTEMPTS, ATTEMPTS)])
def test_what_was_measured_while_others_ran_is_measured_again(restless, measured):
    gpu = SlicedGpu()
    seen: list[int] = []
    lane = Lane(gpu, restless=restless)
    _, beside = during(gpu, lane, lambda: seen.append(1))
    assert len(seen) == measured
    assert (beside is Beside.NOBODY) == (restless < ATTEMPTS)


def test_the_gpu_is_given_back_when_measuring_fails():
    gpu = SlicedGpu()
    lane = Lane(gpu)
    with pytest.raises(ZeroDivisionError):
        during(gpu, lane, lambda: 1 / 0)
    assert lane.said[-2:] == ["together", "checks"]


def test_a_cpu_needs_no_probe():
    lane = Lane(SlicedGpu())
    assert Solitude(lane, Company(None)).during((1,), lambda: 7) == (7, Beside.NOBODY)


def test_a_glance_at_a_quiet_gpu_costs_milliseconds():
    gpu = SlicedGpu()
    company = Company(gpu.probe, gpu.clock)
    assert company.gone_within(0.2, glance=True)
    assert not company.seen()
    assert gpu.now < 0.015


def test_kernels_of_a_stopped_process_are_seen_at_a_glance():
    gpu = SlicedGpu(busy_until_s=0.1)
    company = Company(gpu.probe, gpu.clock)
    assert company.seen()
    assert gpu.now < 0.1
    assert company.gone_within(0.2, glance=True)
    assert not company.seen()


def test_an_interrupt_at_a_glance_is_no_company():
    gpu = SlicedGpu()
    gpu.hiccup_at_s = 0.001
    assert not Company(gpu.probe, gpu.clock).seen()


def test_a_cpu_has_no_company():
    company = Company(None)
    assert company.gone_within(0.0)
    assert not company.seen()

"""The guards of a judge: one watch a task, drift measured again, nothing where nothing is read."""

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.judge_guard import Guards  # noqa: E402
from pike_hpc.evaluate.nvml_guard import VERDICTS  # noqa: E402
from pike_hpc.evaluate.nvml_simulated import Sensors, SimulatedNvml  # noqa: E402
from pike_hpc.evaluate.statistics import Estimate  # noqa: E402

pytestmark = pytest.mark.torch


class Timer:
    """Finds these latencies of the reference, one after the other."""

    def __init__(self, *reference_ms):
        self.left = list(reference_ms)
        self.guards = []

    def __call__(self, guard):
        self.guards.append(guard)
        guard.before()
        assert guard.after(reference_last=True)
        ms = self.left.pop(0)
        found = Estimate(
            speedup=2.0, ci95=(1.9, 2.1), candidate_ms=ms / 2, reference_ms=ms, windows=9
        )
        return found, ("early_stop",)


def after_some(*reference_ms):
    """A watch of a task that was timed so often at 10 ms that it is known, and what comes next."""
    watch = Guards(SimulatedNvml(Sensors(sm_mhz=1755)).gpu().sample).task("a")
    for _ in range(VERDICTS):
        watch.timed(Timer(10.0))
    return watch, Timer(*reference_ms)


def test_a_steady_reference_is_timed_once():
    watch, timer = after_some(10.1, 99.0)
    found, tags, clocks = watch.timed(timer)
    assert (found.reference_ms, tags, timer.left) == (10.1, ("early_stop",), [99.0])
    assert clocks.sm_mhz == 1755


def test_a_pair_whose_reference_drifted_is_void_and_timed_again_under_a_new_guard():
    watch, timer = after_some(11.0, 10.0)
    found, tags, _ = watch.timed(timer)
    assert (found.reference_ms, tags) == (10.0, ("early_stop",))
    assert timer.guards[0] is not timer.guards[1]


def test_one_that_drifted_again_is_noisy():
    watch, timer = after_some(11.0, 11.0)
    found, tags, _ = watch.timed(timer)
    assert (found.reference_ms, set(tags)) == (11.0, {"early_stop", "noisy"})


def test_what_is_usual_is_each_task_s_own():
    guards = Guards(SimulatedNvml().gpu().sample)
    for ms in [10.0] * VERDICTS:
        guards.task("a").timed(Timer(ms))
    assert guards.task("b").timed(Timer(11.0))[1] == ("early_stop",)
    assert guards.task("a") is guards.task("a")


def test_a_cpu_is_neither_read_nor_does_it_drift():
    guards = Guards.of(torch.device("cpu"))
    assert guards.why_not
    for ms in [*[10.0] * VERDICTS, 20.0]:
        found, tags, clocks = guards.task("a").timed(Timer(ms))
        assert (found.reference_ms, tags, clocks) == (ms, ("early_stop",), None)

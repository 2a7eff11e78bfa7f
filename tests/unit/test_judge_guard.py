"""The guards of a judge: one watch a task, drift measured again, nothing where nothing is read."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.judge_anchor import Alone  # noqa: E402
from pike_hpc.evaluate.judge_guard import ATTEMPTS, Guards, at_most  # noqa: E402
from pike_hpc.evaluate.judge_outcome import as_timing  # noqa: E402
from pike_hpc.evaluate.nvml_guard import DRIFT_MS, PAUSES_S, SLACK, VERDICTS, Anchor  # noqa: E402
from pike_hpc.evaluate.nvml_simulated import Sensors, SimulatedNvml  # noqa: E402
from pike_hpc.evaluate.statistics import Estimate  # noqa: E402

pytestmark = pytest.mark.torch

ALONE = Alone(latency_ms=10.0, nulls_ms={1: 0.2, 8: 0.05})


def twice_as_fast(reference_ms):
    """What a timing of a reference that took so long says of a candidate."""
    return Estimate(
        speedup=2.0,
        ci95=(1.9, 2.1),
        candidate_ms=reference_ms / 2,
        reference_ms=reference_ms,
        windows=9,
        half_width=0.05,
    )


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
        return twice_as_fast(ms), ("early_stop",)


def after_some(*reference_ms):
    """A watch of a task that was timed so often at 10 ms that it is known, and what comes next."""
    watch, _ = watch_of()
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
    guards = guards_of()
    for task, ms in (("a", 10.0), ("b", 11.0)):
        guards.task(task).learn(seen(ms))
        for _ in range(VERDICTS):
            guards.task(task).timed(Timer(ms))
    assert guards.task("b").timed(Timer(11.0))[1] == ("early_stop",)
    assert "noisy" in guards.task("a").timed(Timer(11.0, 11.0))[1]
    assert guards.task("a") is guards.task("a")


def test_a_cpu_is_neither_read_nor_does_it_drift():
    guards = Guards.of(torch.device("cpu"))
    assert guards.why_not
    for ms in [*[10.0] * VERDICTS, 20.0]:
        found, tags, clocks = guards.task("a").timed(Timer(ms))
        assert (found.reference_ms, tags, clocks) == (ms, ("early_stop",), None)


def guards_of(sensors=None):
    """Those of a simulated GPU; nobody waits for it to cool."""
    read = SimulatedNvml(sensors).gpu().sample
    return Guards(read, sleep=lambda seconds: None)


def watch_of(mhz=1755):
    """A watch of a task whose reference took 10 ms with no candidate there, and its sensors."""
    sensors = Sensors(sm_mhz=mhz)
    watch = guards_of(sensors).task("a")
    watch.learn(seen(10.0))
    return watch, sensors


def record_of(reference_ms):
    """`twice_as_fast` in the record."""
    return as_timing(twice_as_fast(reference_ms), None)


def seen(latency_ms, **more):
    """A timing of the reference with no candidate there, which counts."""

    def time_alone(guard):
        guard.begin()
        assert guard.after(reference_last=True)
        return replace(ALONE, latency_ms=latency_ms, **more), True

    return time_alone


def disturbed(guard):
    """One that does not count; another may."""
    guard.begin()
    guard.after(reference_last=True)
    return None, True


def crowded(guard):
    """One beside kernels that do not end, so that no other is worth its time."""
    return disturbed(guard)[0], False


def test_a_reference_slower_than_alone_is_timed_again():
    watch, _ = watch_of()
    timer = Timer(15.0, 15.0)
    found, tags, _ = watch.timed(timer)
    assert timer.left == []
    assert set(tags) == {"early_stop", "noisy"}
    assert found.reference_ms == 15.0


@pytest.mark.parametrize(
    ("again", "alone_ms"),
    [
        (seen(9.0), 10.0),
        (seen(10.2), 10.2),
        (seen(12.0), 12.0),
        (disturbed, 10.0),
    ],
)
def test_one_that_only_a_candidate_can_have_slowed_counts_as_it_can_be(again, alone_ms):
    watch, _ = watch_of()
    believed = watch.believed(record_of(15.0), again)
    assert believed.reference_ms == pytest.approx(SLACK * alone_ms + DRIFT_MS)
    part = believed.reference_ms / 15.0
    assert believed.speedup == pytest.approx(2.0 * part)
    assert believed.ci95 == pytest.approx((1.9 * part, 2.1 * part))
    assert believed.candidate_ms == 7.5


def test_one_that_is_slow_without_the_candidate_too_is_believed():
    watch, _ = watch_of()
    assert watch.believed(record_of(15.0), seen(14.0)) == record_of(15.0)


def test_a_usual_one_is_not_timed_without_the_candidate():
    watch, _ = watch_of()
    found = record_of(10.5)
    assert not watch.doubts(found)
    assert watch.doubts(record_of(11.1))


def test_a_slowed_reference_never_becomes_the_usual():
    watch, _ = watch_of()
    for _ in range(20):
        _, tags, _ = watch.timed(Timer(15.0, 15.0))
        assert "noisy" in tags
        assert watch.believed(record_of(15.0), seen(10.0)).reference_ms < 12.0


def test_a_slow_moment_without_a_candidate_excuses_none_later():
    watch, _ = watch_of()
    watch.believed(record_of(15.0), seen(15.0))
    assert watch.believed(record_of(15.0), seen(10.0)).reference_ms < 12.0


@pytest.mark.parametrize("reference_ms", [8.0, 10.0, 10.9])
def test_a_reference_about_as_slow_as_alone_is_believed(reference_ms):
    watch, _ = watch_of()
    found, tags, _ = watch.timed(Timer(reference_ms))
    assert (found.reference_ms, tags) == (reference_ms, ("early_stop",))


def test_a_lower_clock_explains_a_slower_reference():
    watch, sensors = watch_of(mhz=1800)
    sensors.sm_mhz = 1650  # not so low that its blocks would not count
    for _ in range(3):
        watch.timed(Timer(10.0))
    assert watch.timed(Timer(11.9))[1] == ("early_stop",)
    sensors.sm_mhz = 1800
    assert "noisy" in watch_of(mhz=1800)[0].timed(Timer(11.9, 11.9))[1]


def test_one_of_whom_nothing_is_known_alone_is_noisy():
    watch = guards_of().task("a")
    assert watch.timed(Timer(15.0, 99.0))[1] == ("early_stop", "noisy")
    watch.learn(seen(15.0))
    assert watch.timed(Timer(15.0, 99.0))[1] == ("early_stop",)


def test_one_is_timed_alone_until_that_counts():
    def at_try(number, before=disturbed):
        tries = [before] * (number - 1) + [seen(14.0)]

        def time_alone(guard):
            return tries.pop(0)(guard)

        return time_alone

    watch, _ = watch_of()
    assert watch.believed(record_of(15.0), at_try(ATTEMPTS)) == record_of(15.0)
    assert watch.believed(record_of(15.0), at_try(ATTEMPTS + 1)).reference_ms < 12.0
    assert watch.believed(record_of(15.0), at_try(2, crowded)).reference_ms < 12.0


def test_between_two_tries_a_hot_gpu_is_left_to_cool():
    waits = []
    watch = Guards(SimulatedNvml().gpu().sample, sleep=waits.append).task("a")
    watch.learn(disturbed)
    assert sum(waits) == sum(PAUSES_S[: ATTEMPTS - 1])
    watch.learn(seen(10.0))
    assert sum(waits) == sum(PAUSES_S[: ATTEMPTS - 1])


def test_it_is_learned_once_and_only_where_nobody_else_was_there():
    watch = guards_of().task("a")
    watch.learn(disturbed)
    assert watch.anchor is None
    watch.learn(seen(10.0))
    watch.learn(lambda guard: pytest.fail("asked again"))
    assert watch.anchor.latency_ms == 10.0


def test_nothing_is_learned_where_latencies_are_not_steady():
    Guards(why_not="no sensors").task("a").learn(lambda guard: pytest.fail("timed for nothing"))


def test_other_weights_have_the_same_anchor():
    watch = guards_of().task("by seed")
    watch.take(Anchor(latency_ms=10.0, sm_mhz=None))
    assert "noisy" in watch.timed(Timer(15.0, 15.0))[1]


def test_a_faster_reference_than_believed_stays():
    found = record_of(10.0)
    assert at_most(found, 12.0) == found


def test_the_constant_is_no_larger_than_alone_but_for_what_a_lower_clock_explains():
    watch, sensors = watch_of(mhz=1800)
    assert watch.guard().most_null_ms(1) == pytest.approx(SLACK * 0.2 + DRIFT_MS)
    assert watch.guard().most_null_ms(8) == pytest.approx(SLACK * 0.05 + DRIFT_MS)
    assert watch.guard().most_null_ms(4) == float("inf")
    sensors.sm_mhz = 1650
    for _ in range(5):
        watch.timed(Timer(10.0))
    assert watch.guard().most_null_ms(1) == pytest.approx(SLACK * 0.2 * 1800 / 1650 + DRIFT_MS)
    assert guards_of().task("b").guard().most_null_ms(1) == float("inf")

"""Which candidates are timed again, and who leads: pure functions of the replayed journal."""

import itertools

import pytest
from builders.results import key_of, passed
from hypothesis import given, settings
from hypothesis import strategies as st

from pike_hpc.records import (
    EvalResult,
    EvalStatus,
    Evaluated,
    Requested,
    SearchEnded,
    Task,
    TaskOpened,
    Tier,
)
from pike_hpc.search import TaskView, leader, replay, retimes_due
from pike_hpc.search.elites import ALLOWANCE, MOST_ATTEMPTS, settled

TASK = Task(suite="s", id="1", name="t", source="class Model: pass\n")
OPENED = TaskOpened(task=TASK, device_kind="cpu")
WRONG = EvalStatus.WRONG_RESULT


def key(candidate_id, retime=0):
    return key_of(TASK.digest, candidate_id, retime=retime)


def verdict(candidate_id, speedup, *, retime=0, tier=Tier.FP32, tags=()):
    """A verdict; a status in the place of the speedup is a failure."""
    if isinstance(speedup, EvalStatus):
        return Evaluated(result=EvalResult(key=key(candidate_id, retime), status=speedup))
    result = passed(key(candidate_id, retime), speedup, tier=tier, tags=tags)
    return Evaluated(result=result)


def searched(speedups, **options):
    return replay([OPENED, *(verdict(c, s, **options) for c, s in speedups.items())])


def asked(view, due):
    """Journal the requests for these."""
    for each in due:
        name = key(each.candidate_id, each.attempt).request_id
        event = Requested(request_id=name, candidate_id=each.candidate_id, retime=each.attempt)
        view.apply(event)


def played(view, answer, tiers=tuple(Tier), controls=()):
    """Judge again until nothing is due; (candidate, attempt) in the order of asking."""
    order = []
    while due := retimes_due(view, tiers, controls):
        asked(view, due[:1])
        order.append((due[0].candidate_id, due[0].attempt))
        view.apply(answer(*order[-1]))
        assert len(order) <= ALLOWANCE
    return order


def again(values, **options):
    return lambda c, n: verdict(c, values[c], retime=n, **options)


def test_the_fastest_of_each_tier_are_timed_again_and_nobody_else():
    view = searched({"a": 3.0, "b": 2.5, "c": 2.0, "d": 1.5})
    for speedup, name in ((9.0, "h"), (8.0, "i"), (7.0, "j"), (6.0, "k")):
        view.apply(verdict(name, speedup, tier=Tier.HALF))
    order = played(view, lambda c, n: Evaluated(result=resulted(view, c, n)))
    assert [c for c, _ in order] == ["a", "h", "b", "i", "c", "j"]
    assert {n for _, n in order} == {1}


def resulted(view, candidate_id, attempt):
    """The same verdict once more."""
    first = view.results[candidate_id]
    return verdict(
        candidate_id, first.timing.speedup, retime=attempt, tier=first.tier, tags=first.tags
    ).result


def test_only_accepted_tiers_have_columns():
    view = searched({"a": 3.0})
    view.apply(verdict("h", 9.0, tier=Tier.HALF))
    assert [d.candidate_id for d in retimes_due(view, (Tier.FP32,))] == ["a"]


def test_what_is_under_way_is_not_asked_for_again():
    view = searched({"a": 3.0, "b": 2.0})
    due = retimes_due(view, tuple(Tier))
    assert [(d.candidate_id, d.attempt) for d in due] == [("a", 1), ("b", 1)]
    asked(view, due[:1])
    assert [d.candidate_id for d in retimes_due(view, tuple(Tier))] == ["b"]
    asked(view, due)
    assert retimes_due(view, tuple(Tier)) == ()
    assert view.retiming == {key(c, 1).request_id: c for c in "ab"}
    assert not view.idle
    assert view.spent.evaluations == 0, "timing again takes nothing from the search's budget"
    assert view.spent.retimes == 2


def test_the_value_timed_again_is_what_counts_even_where_the_search_saw_more():
    view = searched({"a": 3.0, "b": 2.9, "c": 2.0, "d": 1.9})
    before = leader(view, Tier.FP32)
    assert (before.result.candidate_id, before.retimed) == ("a", False)
    played(view, again({"a": 1.4, "b": 1.3, "c": 1.2}))
    after = leader(view, Tier.FP32)
    assert (after.result.candidate_id, after.retimed) == ("a", True)
    assert after.result.timing.speedup == 1.4, "not d's 1.9, which nobody timed again"
    assert view.results["a"].timing.speedup == 3.0, "the search's value stays beside it"


def test_a_new_first_is_confirmed_by_another_timing():
    view = searched({"a": 3.0, "b": 2.9, "c": 2.0})
    values = {("b", 1): 3.5, ("b", 2): 2.6}
    answer = lambda c, n: verdict(c, values.get((c, n), {"a": 2.5, "c": 1.0}.get(c)), retime=n)  # noqa: E731
    assert played(view, answer) == [("a", 1), ("b", 1), ("c", 1), ("b", 2)]
    best = leader(view, Tier.HALF)
    assert (best.result.candidate_id, best.result.timing.speedup) == ("b", 2.6)


def test_one_that_falls_back_when_confirmed_gives_the_place_back():
    view = searched({"a": 3.0, "b": 2.9, "c": 2.8})
    values = {("a", 1): 2.5, ("b", 1): 3.5, ("b", 2): 2.0, ("c", 1): 2.2}
    order = played(view, lambda c, n: verdict(c, values[c, n], retime=n))
    assert order == [("a", 1), ("b", 1), ("c", 1), ("b", 2)]
    assert leader(view, Tier.FP32).result.candidate_id == "a"


@pytest.mark.parametrize("status", [WRONG, EvalStatus.RUNTIME_ERROR, EvalStatus.TIMEOUT])
def test_who_fails_when_judged_again_loses_the_place_and_the_next_is_asked(status):
    view = searched({"a": 3.0, "b": 2.0, "c": 1.5, "d": 1.2, "e": 1.1})
    values = {"a": status, "b": 2.0, "c": 1.5, "d": 1.2}
    assert [c for c, _ in played(view, again(values))] == ["a", "b", "c", "d"]
    assert leader(view, Tier.HALF).result.candidate_id == "b"


def test_alone_and_failing_there_is_no_best():
    view = searched({"a": 3.0})
    played(view, again({"a": WRONG}))
    assert leader(view, Tier.HALF) is None


def test_another_tier_when_judged_again_is_another_column():
    view = searched({"a": 3.0, "b": 2.0})
    answers = {"a": verdict("a", 3.0, retime=1, tier=Tier.TF32), "b": verdict("b", 2.0, retime=1)}
    played(view, lambda c, n: answers[c])
    assert leader(view, Tier.FP32).result.candidate_id == "b"
    assert leader(view, Tier.TF32).result.candidate_id == "a"


def test_a_judge_that_fails_is_asked_again_and_given_up_in_the_end():
    view = searched({"a": 3.0, "b": 2.0, "c": 1.5, "d": 1.2})
    values = {"a": EvalStatus.JUDGE_ERROR, "b": 2.0, "c": 1.5, "d": 1.2}
    order = played(view, again(values))
    assert [n for c, n in order if c == "a"] == list(range(1, MOST_ATTEMPTS + 1))
    assert "d" in dict(order), "its place is another's to try"
    assert leader(view, Tier.FP32).result.candidate_id == "b"


def test_noise_is_timed_once_more_and_only_once():
    view = searched({"a": 3.0, "b": 2.0})
    order = played(view, again({"a": 2.9, "b": 2.0}, tags=("noisy",)))
    assert sorted(order) == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


def test_those_that_noise_may_have_hidden_are_looked_at_too():
    view = searched({"a": 3.0, "b": 2.9, "c": 2.8, "d": 2.0, "f": 1.8})
    view.apply(verdict("e", 1.9, tags=("noisy",)))
    order = played(view, again({"a": 3.0, "b": 2.9, "c": 2.8, "e": 4.0}))
    assert order == [("a", 1), ("b", 1), ("c", 1), ("e", 1), ("e", 2)]
    assert leader(view, Tier.FP32).result.candidate_id == "e"


def test_the_fastest_stock_setting_is_timed_again_as_well():
    view = searched({"a": 3.0, "b": 2.9, "c": 2.8, "slow": 1.1, "stock": 1.2})
    values = {"a": 3.0, "b": 2.9, "c": 2.8, "stock": 1.2}
    order = played(view, again(values), controls={"stock", "slow"})
    assert [c for c, _ in order] == ["a", "b", "c", "stock"]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0.1, 10.0), st.sampled_from(Tier), st.booleans()), max_size=20),
    st.data(),
)
def test_it_ends_within_its_allowance_and_does_not_depend_on_who_answers_first(found, data):
    """Whatever the judge says: it ends, within bounds, and a replay of the journal agrees."""
    events = [OPENED]
    for number, (speedup, tier, noisy) in enumerate(found):
        tags = ("noisy",) if noisy else ()
        events.append(verdict(f"c{number}", speedup, tier=tier, tags=tags))
    events.append(SearchEnded(reason="over"))
    view = replay(events)
    waiting = []
    statuses = st.sampled_from([None, None, None, WRONG, EvalStatus.JUDGE_ERROR])
    for _ in itertools.count():
        due = retimes_due(view, tuple(Tier), {"c1"})
        assert due == retimes_due(replay(events), tuple(Tier), {"c1"})
        if not due and not waiting:
            break
        if due and (not waiting or data.draw(st.booleans())):
            name = key(due[0].candidate_id, due[0].attempt).request_id
            event = Requested(
                request_id=name, candidate_id=due[0].candidate_id, retime=due[0].attempt
            )
            waiting.append(due[0])
        else:
            each = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            status = data.draw(statuses)
            speedup = status or data.draw(st.floats(0.1, 10.0))
            tags = ("noisy",) if data.draw(st.booleans()) else ()
            options = {} if status else {"tier": data.draw(st.sampled_from(Tier)), "tags": tags}
            event = verdict(each.candidate_id, speedup, retime=each.attempt, **options)
        events.append(event)
        view.apply(event)
    assert view.spent.retimes <= ALLOWANCE
    assert max(view.retimes_asked.values(), default=0) <= MOST_ATTEMPTS
    for tier in Tier:
        first = leader(view, tier)
        ranked = view.ranked(tier)
        if ranked and view.spent.retimes < ALLOWANCE:
            # Where nobody holds the tier by a second timing, everybody was tried: each has lost its
            # place, or its judge failed to the end.
            assert (
                first is None
                or first.retimed
                or all(
                    settled(view, c) or view.retimes_asked.get(c, 0) == MOST_ATTEMPTS
                    for c in ranked
                )
            )


def test_a_view_without_a_task_has_no_leader():
    assert leader(TaskView(), Tier.HALF) is None
    assert retimes_due(TaskView(), tuple(Tier)) == ()

"""TaskView is the replay of the journal: each event, its repetition, and what is still open."""

import pytest
from builders import queries
from builders.queries import answered, reserved
from builders.results import key_of, passed

from pike_hpc.records import (
    Brainstormed,
    ControllerStarted,
    Declined,
    EvalResult,
    EvalStatus,
    Evaluated,
    Finished,
    Paused,
    QueryFailed,
    QueryLost,
    Requested,
    Task,
    TaskOpened,
    Tier,
)
from pike_hpc.search import NodeState, TaskView, replay, tried

TASK = Task(suite="s", id="1", name="t", source="class Model: pass\n")
OPENED = TaskOpened(task=TASK, device_kind="cpu")


def key(candidate_id, task_digest=TASK.digest, **k):
    return key_of(task_digest, candidate_id, **k)


def verdict(candidate_id, speedup=None, *, status=EvalStatus.WRONG_RESULT, tier=Tier.FP32, **k):
    lane_s = k.pop("lane_s", 2.0)
    if speedup is None:
        return EvalResult(key=key(candidate_id, **k), status=status, lane_s=lane_s)
    return passed(key(candidate_id, **k), speedup, tier=tier, lane_s=lane_s)


def proposed(node, candidate_id, **k):
    return queries.proposed(node, candidate_id, f"# {candidate_id}", **k)


def requested(candidate_id):
    return Requested(request_id=key(candidate_id).request_id, candidate_id=candidate_id)


def test_a_node_goes_from_undecided_to_judged():
    view = replay([OPENED])
    states = [view.state("n")]
    for event in (
        reserved("q", "n"),
        answered("q"),
        proposed("n", "c"),
        requested("c"),
        Evaluated(result=verdict("c", 2.0)),
    ):
        view.apply(event)
        states.append(view.state("n"))
    assert states == [
        NodeState.UNDECIDED,
        NodeState.ASKED,
        NodeState.ANSWERED,
        NodeState.PROPOSED,
        NodeState.PROPOSED,
        NodeState.JUDGED,
    ]
    assert view.sources == {"c": "# c"}
    assert view.result("n").timing.speedup == 2.0


def test_other_outcomes_of_a_node():
    view = replay(
        [
            OPENED,
            Brainstormed(node="ideas", ideas=("a", "b")),
            Declined(node="rule/x", operator="rule:x", reason="no conv"),
        ]
    )
    assert view.state("ideas") is NodeState.BRAINSTORMED
    assert view.state("rule/x") is NodeState.DECLINED
    assert view.outcomes["rule/x"].declined == "no conv"
    assert view.result("rule/x") is None
    assert view.idle


@pytest.mark.parametrize(
    ("settled", "charged"),
    [
        (QueryLost(query_id="q"), 1),
        (QueryFailed(query_id="q", kind="unavailable", message=""), 0),
        (QueryFailed(query_id="q", kind="timeout", message="", charged=True), 1),
    ],
)
def test_a_query_without_an_answer_leaves_its_node_to_be_asked_again(settled, charged):
    view = replay([OPENED, reserved("q", "n", usd=0.5)])
    assert view.in_flight == ("q",)
    assert view.spent.reserved_usd == 0.5
    view.apply(settled)
    assert view.state("n") is NodeState.UNDECIDED
    assert view.in_flight == ()
    assert view.spent.queries == charged == view.charged("n")
    assert view.spent.usd == 0.5 * charged
    assert view.spent.reserved_usd == 0.0
    view.apply(reserved("q2", "n"))
    assert view.state("n") is NodeState.ASKED
    assert view.charged("n") == charged + 1


def test_an_answer_nobody_used_yet_is_visible_with_its_text():
    view = replay(
        [OPENED, reserved("q", "n", usd=1.0), answered("q", "t", usd=0.25, tokens=(10, 20))]
    )
    (query,) = view.unparsed
    assert (query.reserved.node, query.answer.text) == ("n", "t")
    assert not view.idle
    spent = view.spent
    assert (spent.usd, spent.input_tokens, spent.output_tokens) == (0.25, 10, 20)
    view.apply(Declined(node="n", operator="optimise", reason="no program"))
    assert view.unparsed == ()


def test_a_candidate_is_to_be_requested_until_it_is():
    view = replay([OPENED, proposed("a", "c1"), proposed("b", "c1"), proposed("c", "c2")])
    assert view.unrequested == ("c1", "c2")
    view.apply(requested("c1"))
    assert view.unrequested == ("c2",)
    assert list(view.unjudged.values()) == ["c1"]
    view.apply(Evaluated(result=verdict("c1")))
    assert view.unjudged == {}
    assert view.state("a") is view.state("b") is NodeState.JUDGED
    assert view.spent.evaluations == 1
    assert view.spent.lane_s == 2.0


def test_repeating_what_is_known_changes_nothing():
    events = [
        ControllerStarted(epoch=1, writer="w", seed=7),
        OPENED,
        reserved("q", "n", usd=1.0),
        answered("q", usd=0.25),
        proposed("n", "c"),
        requested("c"),
        Evaluated(result=verdict("c", 2.0)),
    ]
    assert replay(events + events) == replay(events)


def test_the_first_verdict_is_final_but_a_judge_error_gives_way():
    view = replay([OPENED, proposed("n", "c"), requested("c")])
    view.apply(Evaluated(result=verdict("c", status=EvalStatus.JUDGE_ERROR)))
    assert view.state("n") is NodeState.JUDGED
    view.apply(requested("c"))
    assert view.state("n") is NodeState.PROPOSED
    view.apply(Evaluated(result=verdict("c", 2.0)))
    view.apply(Evaluated(result=verdict("c", 9.0)))
    assert view.results["c"].timing.speedup == 2.0
    assert view.spent.lane_s == 4.0
    assert view.spent.evaluations == 1


def test_verdicts_of_another_device_or_task_are_ignored():
    view = replay([OPENED, proposed("n", "c"), requested("c")])
    view.apply(Evaluated(result=verdict("c", 2.0, device_kind="nvidia-h200")))
    view.apply(Evaluated(result=verdict("c", 2.0, task_digest="other")))
    assert view.results == {}
    assert view.state("n") is NodeState.PROPOSED


def test_a_stricter_candidate_counts_in_looser_tiers_and_ties_go_by_id():
    view = replay([OPENED])
    for candidate_id, speedup, tier in (
        ("b", 2.0, Tier.HALF),
        ("a", 2.0, Tier.HALF),
        ("c", 1.5, Tier.FP32),
        ("d", 1.7, Tier.TF32),
    ):
        view.apply(Evaluated(result=verdict(candidate_id, speedup, tier=tier)))
    view.apply(Evaluated(result=verdict("e")))
    assert view.ranked(Tier.HALF) == ("a", "b", "d", "c")
    assert view.ranked(Tier.TF32) == ("d", "c")
    assert view.ranked(Tier.HALF, {"b", "c", "missing"}) == ("b", "c")
    assert TaskView().ranked(Tier.HALF) == ()


def test_pause_and_finish():
    view = replay([OPENED, Paused(reason="walltime")])
    assert view.paused == "walltime"
    view.apply(ControllerStarted(epoch=2, writer="w"))
    assert view.paused is None
    view.apply(Finished(reason="done"))
    assert view.finished == "done"


def test_history_tells_the_fastest_first_and_nothing_of_the_phase_at_work():
    view = replay(
        [
            OPENED,
            proposed("rule/a", "r", operator="rule:a"),
            proposed("p0/b0/r0", "x", phase=0, branch=0, note="fuse\n the norm"),
            proposed("p0/b1/r0", "y", phase=0, branch=1),
            proposed("p1/b0/r0", "z", phase=1, branch=0),
        ]
    )
    for candidate_id, speedup in (("r", 1.1), ("x", 1.5), ("y", None), ("z", 9.0)):
        view.apply(Evaluated(result=verdict(candidate_id, speedup)))
    assert tried(view, phase=1) == (
        "optimise (fuse the norm): correct at fp32, 1.50x",
        "rule:a: correct at fp32, 1.10x",
        "optimise: WRONG_RESULT",
    )
    assert tried(view, phase=1, limit=1) == ("optimise (fuse the norm): correct at fp32, 1.50x",)
    assert tried(view, phase=None) == ("rule:a: correct at fp32, 1.10x",)

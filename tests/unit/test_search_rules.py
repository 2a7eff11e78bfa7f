"""Strategy `rules`: the portfolio's order, what it leaves out, and the evaluation budget."""

from pike_hpc.records import (
    Declined,
    EvalResult,
    EvalStatus,
    Evaluated,
    Proposal,
    Proposed,
    Requested,
    ResultKey,
    Task,
    TaskOpened,
)
from pike_hpc.search import Finish, Limits, make_strategy, replay

TASK = Task(suite="s", id="1", name="t", source="class Model: pass\n")


def key(candidate_id):
    return ResultKey(
        task_digest=TASK.digest, candidate_id=candidate_id, device_kind="cpu", image_digest="i"
    )


def play(portfolio, *, declines=(), same=None, evaluations=0, name="rules", max_gpu_s=0.0):
    """The nodes tried in order, and why it ended. `same` maps nodes to an equal program."""
    strategy = make_strategy(
        name,
        options={},
        seed=0,
        limits=Limits(evaluations=evaluations, max_gpu_s=max_gpu_s),
        portfolio=tuple(tuple(c.split("+")) for c in portfolio),
        has_model=False,
    )
    view = replay([TaskOpened(task=TASK, device_kind="cpu")])
    nodes = []
    for _ in range(100):
        for action in strategy.decide(view):
            if isinstance(action, Finish):
                return nodes, action.reason, view
            nodes.append(action.node)
            if action.node in declines:
                view.apply(Declined(node=action.node, operator="rule", reason="no"))
                continue
            candidate_id = (same or {}).get(action.node, action.node)
            proposal = Proposal(candidate_id=candidate_id, operator="rule")
            view.apply(Proposed(node=action.node, proposal=proposal, source="#"))
        if view.unrequested:
            candidate_id = view.unrequested[0]
            request_id = key(candidate_id).request_id
            view.apply(Requested(request_id=request_id, candidate_id=candidate_id))
            result = EvalResult(key=key(candidate_id), status=EvalStatus.WRONG_RESULT, lane_s=10.0)
            view.apply(Evaluated(result=result))
    raise AssertionError("the search did not end")


def test_every_composition_is_tried_in_order():
    nodes, reason, view = play(["identity", "fold", "half", "fold+half"])
    assert nodes == ["rule/identity", "rule/fold", "rule/half", "rule/fold+half"]
    assert reason == "Every rule of the portfolio was tried."
    assert view.spent.evaluations == 4


def test_a_composition_with_a_rule_declined_on_its_own_is_left_out():
    nodes, _, _ = play(["fold", "half", "fold+half", "half+cl"], declines={"rule/fold"})
    assert nodes == ["rule/fold", "rule/half", "rule/half+cl"]


def test_a_rule_declined_later_does_not_reach_back():
    nodes, _, _ = play(["fold+half", "fold", "half"], declines={"rule/fold"})
    assert nodes == ["rule/fold+half", "rule/fold", "rule/half"]


def test_the_budget_goes_to_the_first_distinct_programs():
    portfolio = ["a", "b", "c", "d", "e", "f"]
    nodes, reason, view = play(
        portfolio, declines={"rule/a"}, same={"rule/c": "rule/b"}, evaluations=3
    )
    assert nodes == ["rule/a", "rule/b", "rule/c", "rule/d", "rule/e"]
    assert view.spent.evaluations == 3
    assert reason == (
        "All 3 evaluations are used (budget.evaluations_per_task). "
        "The portfolio of rules was not tried to its end."
    )


def test_nothing_overtakes_a_composition_that_may_still_take_the_last_evaluation():
    nodes, _, _ = play(["a", "a+b", "c"], evaluations=2)
    assert nodes == ["rule/a", "rule/a+b"]


def test_a_budget_that_is_just_enough_leaves_nothing_out():
    _, reason, view = play(["a", "b"], evaluations=2)
    assert view.spent.evaluations == 2
    assert reason == "Every rule of the portfolio was tried."


def test_device_time_ends_it_with_programs_left_to_judge():
    _, reason, view = play(["a", "b", "c"], max_gpu_s=15.0)
    assert view.spent.lane_s == 20.0
    assert reason.startswith("20 s of 15 s of device time are used")


def test_nothing_to_try_is_said():
    assert play([])[1] == "The portfolio of rules is empty: nothing to try."
    assert play([], name="default")[1].endswith("No model is configured to go on with.")

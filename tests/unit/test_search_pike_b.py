"""PIKE-B against a trace computed by hand: phases, repairs, parents and the exact budget."""

import pytest
from builders import results
from builders.queries import answered, reserved

from pike_hpc.records import (
    Brainstormed,
    Declined,
    EvalResult,
    EvalStatus,
    Evaluated,
    Proposal,
    Proposed,
    QueryFailed,
    QueryLost,
    Requested,
    ResultKey,
    Role,
    Task,
    TaskOpened,
    Tier,
    UsageError,
)
from pike_hpc.search import AskModel, Finish, Limits, make_strategy, replay
from pike_hpc.search.pike_b import spread

TASK = Task(suite="s", id="1", name="t", source="class Model: pass\n")
DECLINED = "declined"


def key(candidate_id):
    return ResultKey(
        task_digest=TASK.digest, candidate_id=candidate_id, device_kind="cpu", image_digest="i"
    )


def passed(candidate_id, speedup, tier=Tier.FP32):
    return results.passed(key(candidate_id), speedup, tier=tier, lane_s=1.0)


class Game:
    """Carries actions out as an agent would, with verdicts from a table by node."""

    def __init__(self, strategy, table, ideas=("A", "B")):
        self.strategy, self.table, self.ideas = strategy, table, ideas
        self.view = replay([TaskOpened(task=TASK, device_kind="cpu")])
        self.asked = []

    def reserve(self, action):
        query_id = f"q{len(self.view.queries)}"
        self.asked.append(action)
        self.view.apply(reserved(query_id, action.node, action.role))
        return query_id

    def answer(self, query_id):
        self.view.apply(answered(query_id))

    def ask(self, action):
        self.answer(self.reserve(action))
        verdict = self.table.get(action.node, EvalStatus.WRONG_RESULT)
        if action.role is Role.BRAINSTORM:
            self.view.apply(Brainstormed(node=action.node, ideas=self.ideas))
        elif verdict == DECLINED:
            self.view.apply(Declined(node=action.node, operator=action.role, reason="cut off"))
        else:
            self.propose(action.node, action.role)
            self.judge(action.node, verdict)

    def propose(self, node, operator):
        proposal = Proposal(candidate_id=node, operator=operator)
        self.view.apply(Proposed(node=node, proposal=proposal, source=f"# {node}"))

    def judge(self, node, verdict):
        self.view.apply(Requested(request_id=key(node).request_id, candidate_id=node))
        result = (
            EvalResult(key=key(node), status=verdict)
            if isinstance(verdict, EvalStatus)
            else passed(node, verdict)
        )
        self.view.apply(Evaluated(result=result))

    def play(self):
        """Ask for everything until the strategy finishes; its reason."""
        for _ in range(1000):
            actions = self.strategy.decide(self.view)
            assert actions, "nothing is under way, so there is nothing to wait for"
            for action in actions:
                if isinstance(action, Finish):
                    return action.reason
                self.ask(action)
        raise AssertionError("the search did not end")


def pike_b(queries, *, evaluations=0, portfolio=(), name="pike_b", **options):
    return make_strategy(
        name,
        options=options,
        seed=0,
        limits=Limits(queries=queries, evaluations=evaluations),
        portfolio=portfolio,
        has_model=True,
    )


def test_the_trace_computed_by_hand():
    game = Game(
        pike_b(14, branches=3, parents=2, fix_attempts=2),
        {
            "p0/b0/r0": 1.2,
            "p0/b1/r0": EvalStatus.WRONG_RESULT,
            "p0/b2/r0": DECLINED,
            "p0/b1/r1": 1.5,
            "p0/b2/r1": EvalStatus.BUILD_ERROR,
            "p0/b2/r2": EvalStatus.TIMEOUT,
            "p1/b0/r0": 2.0,
            "p1/b1/r0": 1.9,
            "p1/b2/r0": EvalStatus.RUNTIME_ERROR,
            "p1/b2/r1": EvalStatus.OUT_OF_MEMORY,
            "p1/b2/r2": 1.3,
            "p2/b0/r0": EvalStatus.WRONG_RESULT,
            "p2/b1/r0": 3.0,
        },
    )
    reason = game.play()
    trace = [(a.node, a.parent_id, a.idea, a.failed_node, a.failed_id) for a in game.asked]
    assert trace == [
        ("ideas", None, None, None, None),
        # Two ideas for three branches: the first comes round again. Nothing is correct yet.
        ("p0/b0/r0", None, "A", None, None),
        ("p0/b1/r0", None, "B", None, None),
        ("p0/b2/r0", None, "A", None, None),
        ("p0/b1/r1", None, "B", "p0/b1/r0", "p0/b1/r0"),
        ("p0/b2/r1", None, "A", "p0/b2/r0", None),
        ("p0/b2/r2", None, "A", "p0/b2/r1", "p0/b2/r1"),
        # Two parents for three branches: the better one gets two.
        ("p1/b0/r0", "p0/b1/r1", None, None, None),
        ("p1/b1/r0", "p0/b1/r1", None, None, None),
        ("p1/b2/r0", "p0/b0/r0", None, None, None),
        ("p1/b2/r1", "p0/b0/r0", None, "p1/b2/r0", "p1/b2/r0"),
        ("p1/b2/r2", "p0/b0/r0", None, "p1/b2/r1", "p1/b2/r1"),
        # 2.0 and 1.9 are one lineage, so 1.3 is the second parent. Two queries are left.
        ("p2/b0/r0", "p1/b0/r0", None, None, None),
        ("p2/b1/r0", "p1/b0/r0", None, None, None),
    ]
    assert [a.role for a in game.asked[:5]] == ["brainstorm", *["optimise"] * 3, "fix"]
    assert (game.asked[6].phase, game.asked[6].branch, game.asked[6].round) == (0, 2, 2)
    assert reason == "All 14 model queries are used (budget.queries_per_task)."
    assert game.view.spent.queries == 14


def test_the_best_ever_stays_a_parent_through_a_bad_phase():
    game = Game(pike_b(10, branches=2, parents=1, fix_attempts=0), {"p0/b1/r0": 1.7})
    game.play()
    later = {a.node: a.parent_id for a in game.asked if a.phase}
    assert set(later.values()) == {"p0/b1/r0"}
    assert list(later)[-1] == "p4/b0/r0"


def test_without_ideas_and_without_anything_correct_it_goes_on_from_the_reference():
    game = Game(pike_b(5, branches=2, fix_attempts=0), {}, ideas=())
    game.play()
    assert [a.node for a in game.asked] == ["ideas", "p0/b0/r0", "p0/b1/r0", "p1/b0/r0", "p1/b1/r0"]
    assert {(a.parent_id, a.idea) for a in game.asked} == {(None, None)}


def test_a_judge_that_could_not_decide_is_no_reason_for_a_repair():
    game = Game(pike_b(4, branches=1, fix_attempts=5), {"p0/b0/r0": EvalStatus.JUDGE_ERROR})
    game.play()
    assert [a.node for a in game.asked] == ["ideas", "p0/b0/r0", "p1/b0/r0", "p1/b0/r1"]


def test_a_repair_of_an_answer_without_program_still_knows_the_last_failing_program():
    game = Game(pike_b(4, branches=1), {"p0/b0/r1": DECLINED})
    game.play()
    assert (game.asked[-1].failed_node, game.asked[-1].failed_id) == ("p0/b0/r1", "p0/b0/r0")


def test_the_evaluation_budget_ends_it_too():
    game = Game(pike_b(100, evaluations=4, branches=3, fix_attempts=1), {"p0/b0/r0": DECLINED})
    reason = game.play()
    assert game.view.spent.evaluations == 4
    assert reason == "All 4 evaluations are used (budget.evaluations_per_task)."


def test_phases_can_be_limited():
    game = Game(pike_b(100, branches=2, fix_attempts=0, phases=2), {})
    assert game.play() == "All 2 phases are done."
    assert len(game.asked) == 5


def test_what_is_under_way_is_not_decided_again():
    game = Game(pike_b(9, branches=3, fix_attempts=1), {})
    (ideas,) = game.strategy.decide(game.view)
    query = game.reserve(ideas)
    assert game.strategy.decide(game.view) == ()
    game.answer(query)
    assert game.strategy.decide(game.view) == ()
    game.view.apply(Brainstormed(node="ideas", ideas=("A",)))
    actions = game.strategy.decide(game.view)
    assert game.strategy.decide(game.view) == actions
    queries = [game.reserve(a) for a in actions]
    assert game.strategy.decide(game.view) == ()
    # One branch fails: it goes on without waiting for its siblings.
    game.answer(queries[2])
    game.view.apply(Declined(node="p0/b2/r0", operator="optimise", reason="empty"))
    assert [a.node for a in game.strategy.decide(game.view)] == ["p0/b2/r1"]


def test_an_unpaid_failure_is_asked_again_and_a_lost_query_costs_one():
    game = Game(pike_b(3, branches=1, fix_attempts=0), {})
    (ideas,) = game.strategy.decide(game.view)
    game.view.apply(QueryFailed(query_id=game.reserve(ideas), kind="unavailable", message=""))
    (again,) = game.strategy.decide(game.view)
    assert again == ideas
    game.view.apply(QueryLost(query_id=game.reserve(again)))
    game.play()
    assert [a.node for a in game.asked] == ["ideas", "ideas", "ideas", "p0/b0/r0"]
    assert game.view.spent.queries == 3


def test_the_last_query_waits_for_the_branch_that_comes_first():
    """Branch 2 fails first, but with one query left its repair must not overtake branch 0's."""
    game = Game(pike_b(5, branches=3, fix_attempts=1), {})
    game.ask(game.strategy.decide(game.view)[0])
    queries = [game.reserve(a) for a in game.strategy.decide(game.view)]
    for branch in (2, 1):
        game.answer(queries[branch])
        game.view.apply(Declined(node=f"p0/b{branch}/r0", operator="optimise", reason="empty"))
        assert game.strategy.decide(game.view) == ()
    game.answer(queries[0])
    game.view.apply(Declined(node="p0/b0/r0", operator="optimise", reason="empty"))
    assert [a.node for a in game.strategy.decide(game.view)] == ["p0/b0/r1"]


def test_the_default_seeds_the_first_phase_with_the_winners_of_the_rules():
    rules = (("identity",), ("compile",), ("half",), ("half", "compile"))
    game = Game(pike_b(4, name="default", portfolio=rules, branches=3, parents=2), {})
    speeds = {"rule/identity": 1.0, "rule/compile": 1.6, "rule/half+compile": 2.5}
    proposals = game.strategy.decide(game.view)
    assert [a.node for a in proposals] == ["rule/identity", "rule/compile", "rule/half"]
    for action in proposals:
        game.propose(action.node, "rule")
    (last,) = game.strategy.decide(game.view)
    assert last.node == "rule/half+compile"
    game.propose(last.node, "rule")
    game.judge("rule/half", EvalStatus.WRONG_RESULT)
    for node, speed in speeds.items():
        assert game.strategy.decide(game.view) == ()
        game.judge(node, speed)
    game.play()
    assert [(a.node, a.parent_id, a.idea) for a in game.asked] == [
        ("ideas", None, None),
        ("p0/b0/r0", "rule/half+compile", "A"),
        ("p0/b1/r0", "rule/half+compile", "B"),
        ("p0/b2/r0", "rule/compile", "A"),
    ]


def test_the_default_keeps_asking_while_other_queries_are_in_flight():
    game = Game(pike_b(20, name="default", branches=2), {})
    game.ask(game.strategy.decide(game.view)[0])
    first, _ = game.strategy.decide(game.view)
    game.view.apply(QueryLost(query_id=game.reserve(first)))
    nodes = [a.node for a in game.strategy.decide(game.view)]
    assert nodes == ["p0/b0/r0", "p0/b1/r0"]


@pytest.mark.parametrize(
    ("parents", "samples", "split"),
    [(4, 10, [3, 3, 2, 2]), (1, 3, [3]), (4, 2, [1, 1, 0, 0]), (3, 9, [3, 3, 3])],
)
def test_samples_are_split_evenly(parents, samples, split):
    ids = [str(i) for i in range(parents)]
    chosen = spread(ids, samples)
    assert [chosen.count(i) for i in ids] == split
    assert chosen == sorted(chosen)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("pike_c", {}, ("no strategy 'pike_c'", "default, pike_b, rules", "mean 'pike_b'?")),
        ("pike_b", {"branchs": 3}, ("no option 'branchs'", "did you mean 'branches'?")),
        ("pike_b", {"branches": 0}, ("0 is not valid", "at least 1")),
        ("default", {"parents": True}, ("True is not valid", "search.options.parents")),
        ("default", {"parents": "4"}, ("'4' is not valid",)),
        ("rules", {"branches": 3}, ("no option 'branches'", "it takes no options")),
    ],
)
def test_wrong_names_and_options_are_one_clear_message(name, options, words):
    with pytest.raises(UsageError) as error:
        pike_b(10, name=name, **options)
    for word in words:
        assert word in str(error.value)


def test_a_model_search_needs_a_model_and_an_end():
    with pytest.raises(UsageError, match=r"add models\.optimise"):
        make_strategy(
            "pike_b", options={}, seed=0, limits=Limits(queries=1), portfolio=(), has_model=False
        )
    with pytest.raises(UsageError, match=r"budget\.queries_per_task"):
        pike_b(0)
    assert isinstance(pike_b(0, phases=1).decide(replay([]))[0], AskModel)


def test_what_is_lost_is_spent_so_fewer_queries_are_asked_for_again():
    game = Game(pike_b(5, branches=3, fix_attempts=1), {})
    game.ask(game.strategy.decide(game.view)[0])
    queries = [game.reserve(a) for a in game.strategy.decide(game.view)]
    for branch in (0, 2):
        game.view.apply(QueryLost(query_id=queries[branch]))
    assert [a.node for a in game.strategy.decide(game.view)] == ["p0/b0/r0"]

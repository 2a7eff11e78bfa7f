"""Sums of a call: which are tried, and that an edit leaves the term that it says."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pike_hpc.evaluate import judge_mutants_addends as addends  # noqa: E402
from pike_hpc.evaluate.judge_mutants_addends import (  # noqa: E402
    MOST_ADDENDS,
    addend_edits,
    inputs_as_answers,
)

pytestmark = pytest.mark.torch

WEIGHT = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
X = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))


def found(forward, *, on_gpu=False):
    """What is left of which sum, by what is said of it, and the answers."""
    edits = addend_edits(lambda: forward(X), [WEIGHT], on_gpu=on_gpu)
    answers = {}
    for name, edit in edits.items():
        with edit():
            answers[name.split(", its ")[1]] = forward(X)
    return answers


def mixed(x):
    return x @ WEIGHT


SIGNS = {
    "plus": (lambda x: x + mixed(x), lambda x: (x, mixed(x))),
    "twice": (lambda x: torch.add(x, mixed(x), alpha=2), lambda x: (x, 2 * mixed(x))),
    "minus": (lambda x: x - mixed(x), lambda x: (x, -mixed(x))),
    "in place": (lambda x: x.clone().add_(mixed(x)), lambda x: (x, mixed(x))),
    "from": (lambda x: torch.rsub(x, mixed(x)), lambda x: (-x, mixed(x))),
    "apart": (lambda x: mixed(x) + mixed(x.T), lambda x: (mixed(x), mixed(x.T))),
}


@pytest.mark.parametrize("kind", SIGNS)
def test_a_term_is_left_alone_as_it_counts_and_comes_back(kind):
    forward, (first, second) = SIGNS[kind][0], SIGNS[kind][1](X)
    before, answers = forward(X), found(forward)
    assert torch.equal(answers["first term alone"], first)
    # To leave out the input itself saves nothing.
    assert ("second term alone" in answers) == (kind in ("in place", "apart"))
    assert torch.equal(answers.get("second term alone", second), second)
    assert torch.equal(forward(X), before)


def test_all_sums_of_one_place_are_left_out_together():
    def steps(x):
        for _ in range(3):
            x = x + 0.1 * mixed(x)
        return x

    assert torch.equal(found(steps)["first term alone"], X)


def test_two_sums_on_one_line_are_two():
    edits = addend_edits(lambda: mixed(X) + mixed(X.T) + mixed(X.sin()), [WEIGHT], on_gpu=False)
    names = [name.split(" in ")[0] for name in edits]
    assert names == ["sum 1", "sum 1", "sum 2", "sum 2"]


NOTHING_SAVED = {
    "its own cube": lambda x: (y := mixed(x)) + 0.04 * y**3,
    "a weight": lambda x: mixed(x) + WEIGHT,
    "what weights alone make": lambda x: mixed(x) + (WEIGHT @ WEIGHT),
    "a mask": lambda x: mixed(x) + torch.ones(64, 64).triu(),
    "a neighbour of a neighbour": lambda x: mixed(x.roll(1, 0) + x.roll(1, 1)),
    "a wider shape": lambda x: mixed(x) + mixed(x)[:1],
    "whole numbers": lambda x: (mixed(x).round().long() + mixed(x.T).round().long()).float(),
}


@pytest.mark.parametrize("kind", NOTHING_SAVED)
def test_what_saves_nothing_is_not_left_out(kind):
    assert "first term alone" not in found(NOTHING_SAVED[kind])


def test_what_takes_little_of_all_that_is_moved_is_not_left_out():
    def forward(x):
        for _ in range(30):
            x = torch.tanh(mixed(x))
        return x[:2] + mixed(x[2:4])

    assert found(forward) == {}


def test_neighbours_are_another_term_than_what_they_are_near_to():
    def sliced(x):
        inner = x[1:-1]
        return inner + 0.1 * (x[2:] + x[:-2] - 2 * inner)

    def rolled(x):
        return x + 0.1 * (x.roll(1, 0) + x.roll(-1, 0) - 2 * x)

    assert torch.equal(found(sliced)["first term alone"], X[1:-1])
    assert torch.equal(found(rolled)["first term alone"], X)


def test_what_is_written_into_a_part_is_behind_the_whole():
    def forward(x):
        made = torch.zeros_like(x)
        made[:32] = mixed(x)[:32]
        return x + made

    assert torch.equal(found(forward)["first term alone"], X)


def test_torchs_own_layers_add_too():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 2, 64, batch_first=True, dropout=0.0).eval()
    with torch.no_grad():
        edits = addend_edits(lambda: layer(X[None]), [*layer.parameters()], on_gpu=False)
    assert {name.split(" in ")[1].split(":")[0] for name in edits} == {"transformer.py"}


def test_of_many_sums_some_are_tried():
    lines = ["    x = x + (x @ WEIGHT @ WEIGHT @ WEIGHT)\n"] * (MOST_ADDENDS + 2)
    names = {"WEIGHT": WEIGHT}
    exec("def forward(x):\n" + "".join(lines) + "    return x\n", names)
    edits = list(addend_edits(lambda: names["forward"](X), [], on_gpu=False))
    assert len(edits) == MOST_ADDENDS
    assert edits[0].startswith("sum 1 in <string>:2,")
    assert edits[-1].startswith(f"sum 1 in <string>:{len(lines) + 1},")


def test_on_a_gpu_nothing_is_left_out_of_what_makes_places_of_floating_numbers():
    def forward(x):
        place = (x + mixed(x)).softmax(0).mul(60).long()
        return X.gather(0, place)

    assert found(forward)
    assert found(forward, on_gpu=True) == {}
    assert found(mixed_and_whole, on_gpu=True)


def mixed_and_whole(x):
    return x + mixed(x), x.argmax(0)


def test_what_cannot_be_watched_has_no_such_versions():
    def forward(x):
        raise RuntimeError("no modes here")

    assert addend_edits(lambda: forward(X), [], on_gpu=False) == {}


def test_an_input_may_stand_for_an_answer_of_its_shape_and_kind():
    inputs = [torch.ones(2, 3), torch.ones(2, 3, dtype=torch.long), torch.ones(3, 2)]
    answers = {0: torch.ones(2, 3), 2: torch.ones(3, 2).double(), 3: torch.ones(2, 3) * 1j}
    assert inputs_as_answers(inputs, answers) == [(0, 0), (2, 2)]


def test_a_loop_that_a_sum_would_end_ends_without_it():
    def until(x):
        total = torch.zeros(())
        while float(total) < 1.0:
            total = total + mixed(x).abs().mean() / 20
        return total * x

    edits = addend_edits(lambda: until(X), [WEIGHT], on_gpu=False)
    (edit,) = (edit for name, edit in edits.items() if "first term alone" in name)
    with edit(), pytest.raises(RuntimeError, match="goes on"):
        until(X)


def test_a_long_loop_is_watched_at_the_cost_of_its_steps():
    """Behind each step lie all those before it: told apart, they would be its square."""
    gates = torch.rand(400, 64, generator=torch.Generator().manual_seed(2))

    def scan(x):
        h = mixed(x)[0]
        for t in range(400):
            h = gates[t] * h + (x[t % 64] @ WEIGHT)
        return h

    with addends._Watching(set()) as seen:
        scan(X)
    assert max(len(works) for works in seen._works.values()) <= addends.MOST_WORKS

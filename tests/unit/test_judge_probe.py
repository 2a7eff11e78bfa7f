"""Mixtures of two sets of weights: every change is told from every other, and ties hold."""

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.judge_memory import bytes_of, views  # noqa: E402
from pike_hpc.evaluate.judge_probe import Group, draw_bits, groups_of  # noqa: E402
from pike_hpc.evaluate.judge_secrets import Secrets  # noqa: E402
from pike_hpc.evaluate.judge_truth import Truth, WeightsBy  # noqa: E402
from pike_hpc.evaluate.runner import MIXTURE_BITS, is_other  # noqa: E402
from pike_hpc.records import Task  # noqa: E402
from pike_hpc.tasks.load import build  # noqa: E402

pytestmark = pytest.mark.torch

SOURCE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {layers}

    def forward(self, x):
        {body}


def get_inputs():
    return [torch.randn(16, 8)]


def get_init_inputs():
    return []
"""
TWO = SOURCE.format(
    layers="self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)",
    body="return self.b(torch.relu(self.a(x)))",
)
TIED = SOURCE.format(
    layers="self.a, self.b = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)\n"
    "        self.b.weight = self.a.weight",
    body="return self.b(torch.relu(self.a(x)))",
)


def group(elements, *bits):
    return Group(bits=frozenset(bits), elements=elements)


def truth_of(source, key=b"key"):
    task = Task(suite="tests", id="1", name="tiny", source=source)
    return Truth(build(task), WeightsBy.STATE, torch.device("cpu"), Secrets(key))


def groups_in(*tensors, same=()):
    """Groups of a model with these tensors, all of which change but those at `same`."""
    own = [torch.zeros_like(t) for t in tensors]
    other = [t.new_full(t.shape, float(i not in same)) for i, t in enumerate(tensors)]
    return groups_of(tensors, own, other)


def test_what_did_not_change_makes_no_group():
    a, b, c = (torch.empty(n) for n in (4, 9, 5))
    assert groups_in(a, b, c, same=[1]) == [group(4, 0), group(5, 2)]


def test_tensors_that_share_memory_change_together():
    a, b = torch.empty(10), torch.empty(5)
    assert groups_in(a[:4], b, a[4:]) == [group(10, 0, 2), group(5, 1)]


def test_whole_numbers_change_together():
    rows, weight, columns = (
        torch.empty(n, dtype=d) for n, d in ((4, torch.int64), (9, None), (4, torch.int32))
    )
    assert groups_in(rows, weight, columns) == [group(9, 1), group(8, 0, 2)]


def test_what_is_empty_shares_nothing():
    assert groups_in(torch.empty(0), torch.empty(3), torch.empty(0), torch.empty(2)) == [
        group(3, 1),
        group(2, 3),
    ]


def test_slots_that_share_a_bit_change_together():
    """Of 66 slots the last two begin the bits again, and the last shares memory with the fourth."""
    tensors = [torch.empty(1) for _ in range(MIXTURE_BITS + 1)]
    groups = groups_in(*tensors, tensors[3])
    assert group(2, 0) in groups
    assert group(3, 1, 3) in groups
    assert len(groups) == MIXTURE_BITS - 1


@pytest.mark.parametrize("seed", range(20))
def test_of_two_groups_one_is_in_and_one_is_out(seed):
    bits = draw_bits([group(100, 0), group(1, 5, 63)], seed)
    assert bits in (1, (1 << 5) + (1 << 63))
    assert [is_other(bits, i) for i in (0, 5, 63, 64, 127)] in (
        [True, False, False, True, False],
        [False, True, True, False, True],
    )


def test_seeds_draw_either_group():
    assert len({draw_bits([group(1, 0), group(1, 1)], seed) for seed in range(20)}) == 2


@pytest.mark.parametrize("seed", range(20))
def test_either_side_holds_much_of_what_changes(seed):
    groups = [group(8192, 0), group(8192, 1), *(group(64, i) for i in range(2, 12))]
    bits = draw_bits(groups, seed)
    assert is_other(bits, 0) != is_other(bits, 1)


@pytest.mark.parametrize("groups", [[], [(9, 0, 1)]])
def test_of_one_group_there_is_no_mixture(groups):
    assert draw_bits([group(*g) for g in groups], 1) is None


def test_the_truth_of_a_mixture_is_the_reference_under_it():
    truth = truth_of(TWO)
    probe = truth.probe
    slots = truth.frame.weight_slots
    pairs = [views(slots, bytes_of(w.buffer)) for w in (truth.weights, probe.weights)]
    bits = probe.mixture.bits
    picked = [pair[is_other(bits, i)] for i, pair in enumerate(zip(*pairs, strict=True))]
    state = {slot.name: w.clone() for slot, w in zip(slots, picked, strict=True)}
    x = views(truth.frame.input_slots, probe.packed)[0]
    hidden = torch.relu(torch.nn.functional.linear(x, state["a.weight"], state["a.bias"]))
    expected = torch.nn.functional.linear(hidden, state["b.weight"], state["b.bias"])
    assert torch.allclose(probe.mixture.truth[0].float(), expected, atol=1e-5)
    for other in (probe.truth, probe.stale):
        assert not torch.allclose(probe.mixture.truth[0].float(), other[0].float(), atol=1e-4)
    # The judging weights stay what they were.
    again = truth.answers(truth._probe_seed ^ 1)
    assert torch.equal(again[0], probe.stale[0])
    truth.close()


def test_tied_weights_have_no_mixture():
    truth = truth_of(TIED)
    assert truth.probe.mixture is None
    truth.close()


DEFINITE = SOURCE.format(
    layers="self.a, root = nn.Linear(8, 8), torch.randn(8, 8)\n"
    "        self.covariance = nn.Parameter(root @ root.T + 8 * torch.eye(8))",
    body="return self.a(x) @ torch.linalg.cholesky(self.covariance)",
)


def test_where_no_sign_may_turn_the_probe_turns_none():
    """Four seeds: signs of a diagonal may be left alone by chance, though hardly in all of them."""
    for number in range(4):
        truth = truth_of(DEFINITE, b"%d" % number)
        probe = truth.probe
        assert all(bool(t.isfinite().all()) for t in probe.truth)
        name = [slot.name for slot in truth.frame.weight_slots].index("covariance")
        other = views(truth.frame.weight_slots, bytes_of(probe.weights.buffer))[name]
        own = views(truth.frame.weight_slots, bytes_of(truth.weights.buffer))[name]
        assert (other.diagonal() > 0).all()
        assert not torch.equal(other, own)
        truth.close()

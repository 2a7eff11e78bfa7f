"""Timed inputs can't be told from earlier ones, though the generators behind them are no secret.

A Mersenne twister gives itself away by 624 of its 32-bit outputs. A program that has seen one
input could compute the answers to those that follow, if they came from the same stream.
"""

import itertools
import os
import random

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.judge_memory import views  # noqa: E402
from pike_hpc.evaluate.judge_secrets import Secrets  # noqa: E402
from pike_hpc.evaluate.judge_truth import Truth, WeightsBy  # noqa: E402
from pike_hpc.records import Task  # noqa: E402
from pike_hpc.tasks.load import build  # noqa: E402

pytestmark = pytest.mark.torch

WORDS = 624
SOURCE = f"""
import random

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear({WORDS}, 2)

    def forward(self, x):
        return self.layer(x.float() / 2**32)


def get_inputs():
    return [torch.tensor([random.getrandbits(32) for _ in range({WORDS})])]


def get_init_inputs():
    return []
"""


def untempered(word: int) -> int:
    """The state's word behind an output of MT19937 (Matsumoto and Nishimura 1998)."""

    def undo_left(value: int, shift: int, mask: int) -> int:
        found = value
        for _ in range(32 // shift):
            found = value ^ ((found << shift) & mask)
        return found & 0xFFFFFFFF

    def undo_right(value: int, shift: int) -> int:
        found = value
        for _ in range(32 // shift):
            found = value ^ (found >> shift)
        return found

    word = undo_right(word, 18)
    word = undo_left(word, 15, 0xEFC60000)
    word = undo_left(word, 7, 0x9D2C5680)
    return undo_right(word, 11)


def predicted(seen: list[int]) -> list[int]:
    """What the stream that gave these numbers gives next."""
    known = random.Random()
    known.setstate((3, (*map(untempered, seen), WORDS), None))
    return [known.getrandbits(32) for _ in range(WORDS)]


def test_the_prediction_is_right_for_one_stream():
    stream = random.Random(7)
    first, second = ([stream.getrandbits(32) for _ in range(WORDS)] for _ in range(2))
    assert predicted(first) == second


def test_no_timed_input_follows_from_another():
    task = Task(suite="tests", id="1", name="words", source=SOURCE)
    truth = Truth(build(task), WeightsBy.STATE, torch.device("cpu"), Secrets(os.urandom(32)))
    try:
        packed = truth.pack_fresh(Secrets(os.urandom(32)).seed("window"), 3)
        seen = [views(truth.frame.input_slots, raw)[0].tolist() for raw in packed]
    finally:
        truth.close()
    assert len({tuple(words) for words in seen}) == 3
    for first, second in itertools.pairwise(seen):
        assert predicted(first) != second


def test_inputs_of_many_seeds_are_those_of_each():
    loaded = build(Task(suite="tests", id="1", name="words", source=SOURCE))
    many = loaded.draws([3, 5], lambda arguments: arguments[0].tolist())
    assert many == [loaded.inputs(seed)[0].tolist() for seed in (3, 5)]


REFILLED = """
import torch
from torch import nn

X = torch.empty(4)


class Model(nn.Module):
    def forward(self, x):
        return x * 2


def get_inputs():
    return [X.uniform_(-1, 1)]
"""


def test_inputs_of_a_task_that_fills_one_tensor_again_are_kept_apart():
    task = Task(suite="tests", id="2", name="refilled", source=REFILLED)
    truth = Truth(build(task), WeightsBy.STATE, torch.device("cpu"), Secrets(bytes(32)))
    first = truth.natively(201)[0].clone()
    truth.natively(202)
    assert torch.equal(truth.natively(201)[0], first)

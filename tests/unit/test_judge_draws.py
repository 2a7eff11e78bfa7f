"""A task that is not admitted with some weights is tried with others."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch
from builders.tiny_task import TASK_SOURCE

from pike_hpc.evaluate import judge_bench
from pike_hpc.evaluate.judge_bench import DRAWS, Bench
from pike_hpc.evaluate.judge_memory import Place
from pike_hpc.evaluate.judge_secrets import Secrets
from pike_hpc.evaluate.judge_truth import WeightsBy
from pike_hpc.records import Task

pytestmark = pytest.mark.torch


class Draw:
    """A truth of these secrets."""

    def __init__(self, seed: int, *, legacy: bool, parameters: int) -> None:
        self.seed, self.legacy, self.parameters, self.is_closed = seed, legacy, parameters, False

    def forget_inputs(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


class Admitting:
    """In the place of what draws weights and tries them: each draw comes to what is told."""

    def __init__(self, monkeypatch, *found: bool | Exception, legacy=False, parameters=1) -> None:
        self.made: list[Draw] = []
        self._found, self._legacy, self._parameters = found, legacy, parameters
        monkeypatch.setattr(judge_bench, "Truth", self._draw)
        monkeypatch.setattr(judge_bench, "admit", self._admit)

    def _draw(self, loaded, by, device, secrets) -> Draw:
        seed = secrets.seed("weights")
        self.made.append(Draw(seed, legacy=self._legacy, parameters=self._parameters))
        return self.made[-1]

    def _admit(self, truth, digest):
        found = self._found[self.made.index(truth)]
        if isinstance(found, Exception):
            raise found
        return SimpleNamespace(admission=SimpleNamespace(admitted=found))


def bench(more: str = "") -> Bench:
    task = Task(suite="tests", id="1", name="tiny", source=TASK_SOURCE + more)
    return Bench(task, None, torch.device("cpu"), Place.HOST, Secrets(bytes(32)))


CHECKPOINT = """

def get_state_dict():
    return None
"""


@pytest.mark.parametrize(
    ("found", "given", "draws"),
    [
        ([True], {}, 1),
        ([False, True], {}, 2),
        ([False] * DRAWS, {}, DRAWS),
        ([False], {"legacy": True}, 1),
        ([False], {"parameters": 0}, 1),
        ([False], {"more": CHECKPOINT}, 1),
    ],
    ids=["admitted", "with others", "with none", "legacy weights", "no weights", "a checkpoint"],
)
def test_other_weights_are_drawn_until_a_task_is_admitted(monkeypatch, found, given, draws):
    more = given.pop("more", "")
    admitting, made = Admitting(monkeypatch, *found, **given), bench(more)
    truth, yardstick = made.truth(WeightsBy.STATE)
    drawn = admitting.made
    assert truth is drawn[-1]
    assert yardstick.admission.admitted is found[-1]
    assert len({one.seed for one in drawn}) == len(drawn) == draws
    assert [one.is_closed for one in drawn] == [True] * (draws - 1) + [False]
    assert made.truth(WeightsBy.STATE) == (truth, yardstick), "it is kept"


def test_a_task_that_other_weights_end_is_refused_as_it_was_before(monkeypatch):
    admitting = Admitting(monkeypatch, False, RuntimeError("not positive definite"), False)
    truth, yardstick = bench().truth(WeightsBy.STATE)
    first, second, third = admitting.made
    assert truth is third
    assert third.seed == first.seed != second.seed
    assert not yardstick.admission.admitted
    assert first.is_closed
    assert second.is_closed


def test_what_fails_with_its_own_weights_is_let_go(monkeypatch):
    admitting = Admitting(monkeypatch, RuntimeError("no"))
    with pytest.raises(RuntimeError):
        bench().truth(WeightsBy.STATE)
    assert admitting.made[0].is_closed

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

    def __init__(self, seed: int, *, legacy: bool) -> None:
        self.seed, self.legacy, self.is_closed = seed, legacy, False

    def forget_inputs(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(
    ("verdicts", "legacy", "draws"),
    [
        ([True], False, 1),
        ([False, True], False, 2),
        ([False] * DRAWS, False, DRAWS),
        ([False], True, 1),
    ],
    ids=["admitted", "with others", "with none", "legacy weights are given"],
)
def test_other_weights_are_drawn_until_a_task_is_admitted(monkeypatch, verdicts, legacy, draws):
    made: list[Draw] = []

    def draw(loaded, by, device, secrets) -> Draw:
        made.append(Draw(secrets.seed("weights"), legacy=legacy))
        return made[-1]

    def admit(truth, digest):
        return SimpleNamespace(admission=SimpleNamespace(admitted=verdicts[made.index(truth)]))

    monkeypatch.setattr(judge_bench, "Truth", draw)
    monkeypatch.setattr(judge_bench, "admit", admit)
    task = Task(suite="tests", id="1", name="tiny", source=TASK_SOURCE)
    bench = Bench(task, None, torch.device("cpu"), Place.HOST, Secrets(bytes(32)))
    truth, yardstick = bench.truth(WeightsBy.STATE)
    assert truth is made[-1]
    assert yardstick.admission.admitted is verdicts[-1]
    assert len({one.seed for one in made}) == len(made) == draws
    assert [one.is_closed for one in made] == [True] * (draws - 1) + [False]
    assert bench.truth(WeightsBy.STATE) == (truth, yardstick), "it is kept"

"""A program is put into eval mode once, and what has no modes is left alone."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from pike_hpc.evaluate.runner.serve import put_in_eval_mode  # noqa: E402

pytestmark = pytest.mark.torch


class Folds(nn.Module):
    """Counts how often it is told; says nothing of itself."""

    def __init__(self):
        super().__init__()
        self.inner, self.told = nn.Dropout(), []

    def train(self, mode=True):
        self.told.append(mode)
        super().train(mode)


class FoldsInEval(Folds):
    """Has an `eval` of its own, which does not come to `train`."""

    def eval(self):
        self.told.append("eval")


class Refuses(nn.Module):
    """As graphs of torch.export do."""

    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def train(self, mode=True):
        raise NotImplementedError

    def eval(self):
        raise NotImplementedError


def test_a_program_is_told_once_and_in_its_own_way():
    for model, told in ((Folds(), [False]), (FoldsInEval(), ["eval"])):
        put_in_eval_mode(model)
        assert model.told == told


@pytest.mark.parametrize("root", [nn.Sequential, lambda *parts: Refuses(a=nn.Sequential(*parts))])
def test_all_but_what_refuses_is_put_into_eval_mode_and_nothing_twice(root):
    early, within, late = Folds(), Folds(), Folds()
    graph = Refuses(within=within)
    put_in_eval_mode(root(early, graph, nn.Sequential(late, nn.BatchNorm1d(1))))
    assert [m.told for m in (early, within, late)] == [[False]] * 3
    assert graph.training


def test_a_graph_of_torch_export_stays_and_its_neighbours_do_not():
    graph = torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),)).module()
    model = nn.Sequential(graph, nn.Dropout())
    put_in_eval_mode(model)
    assert not model[1].training
    put_in_eval_mode(graph)


def test_what_else_a_program_raises_is_its_own():
    class Broken(nn.Module):
        def train(self, mode=True):
            raise ValueError(mode)

    with pytest.raises(ValueError, match="False"):
        put_in_eval_mode(nn.Sequential(Broken()))

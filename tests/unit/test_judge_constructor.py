"""References whose constructors would be misled by weights that they are given."""

import math
from typing import ClassVar

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from pike_hpc.evaluate.judge_constructor import differs_when_given, drawn_buffers  # noqa: E402
from pike_hpc.evaluate.judge_other_weights import scramble  # noqa: E402
from pike_hpc.evaluate.judge_shared import Frame  # noqa: E402
from pike_hpc.evaluate.judge_weights import beside_state, spread_constants  # noqa: E402
from pike_hpc.evaluate.layout import lay_out  # noqa: E402
from pike_hpc.evaluate.runner import layers_made, watching  # noqa: E402

pytestmark = pytest.mark.torch

C = 8


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(C, C), nn.LayerNorm(C), nn.Linear(C, C)
        self.gain = nn.Parameter(torch.rand(C))


class Initialises(Plain):
    def __init__(self):
        super().__init__()
        nn.init.normal_(self.a.weight)
        self.b.weight.data.normal_()


class CopiesALayer(nn.Module):
    """The layer that is copied is thrown away, and has the shape of another."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(C, 2, dim_feedforward=C, batch_first=True), 2
        )
        self.out = nn.Linear(C, C)


class Scales(Plain):
    """As deep transformers do to their branches."""

    def __init__(self):
        super().__init__()
        self.b.weight.data.mul_(1 / math.sqrt(2))


class Calls(nn.Module):
    """To know a size; what its norm has seen by then is put right when weights are loaded."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(C)
        self.out = nn.Linear(self.norm(torch.arange(4.0 * C).view(4, C)).shape[1], C)


class Keeps(Plain):
    def __init__(self):
        super().__init__()
        self.kept = self.norm.weight.detach() + 1


class Checks(Plain):
    """What it is given must be what it was."""

    usual: ClassVar[list[float]] = []

    def __init__(self):
        super().__init__()
        self.fixed = nn.Parameter(torch.full((C,), 0.5))
        self.usual.append(float(self.a.weight.detach().abs().max()))
        if self.usual[-1] > 1.1 * self.usual[0]:
            raise ValueError("weights out of range")


def differs(reference):
    def fresh(seed=1):
        torch.manual_seed(seed)
        return reference()

    made = []
    with watching(made.append):
        model = fresh()
    spread_constants(model, 1)
    state = {name: t.detach().clone() for name, t in model.state_dict().items()}
    names = list(state)
    slots = lay_out(
        (name, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in state.items()
    )
    parameters = dict(model.named_parameters())
    frame = Frame(
        input_tree=None,
        input_slots=(),
        output_tree=None,
        output_slots=(),
        weight_slots=slots,
        parameters=tuple(i for i, name in enumerate(names) if name in parameters),
        layers=tuple(
            (kind, tuple(map(names.index, own))) for kind, own in layers_made(model, made)
        ),
        on_host=(),
    )
    beside = [t.clone() for t in beside_state(fresh())]
    return differs_when_given(fresh, frame, state, beside, torch.device("cpu"), twice=True)


@pytest.mark.parametrize("reference", [Plain, Initialises, Calls])
def test_most_references_are_what_they_were(reference):
    assert not differs(reference)


def test_a_constructor_that_takes_no_other_weights_stops_nobody():
    Checks.usual.clear()
    differs(Checks)
    assert Checks.usual[-1] > 1.1 * Checks.usual[0]


@pytest.mark.parametrize("reference", [CopiesALayer, Scales, Keeps])
def test_who_changes_copies_or_keeps_what_it_was_given_is_known(reference):
    assert differs(reference)


class Buffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(C)
        self.register_buffer("table", torch.linspace(0, 1, C))
        self.register_buffer("projection", torch.randn(C))
        self.register_buffer("mask", torch.ones(C).bool())
        self.register_buffer("order", torch.randperm(C))
        self.register_buffer("kept", torch.rand(C) > 0.5)


class Labels(nn.Module):
    """Numbers of which others may be more, or mean nothing here."""

    def __init__(self, fits):
        super().__init__()
        self.register_buffer("order", torch.randperm(C))
        chosen = torch.rand(64) > 0.5
        self.register_buffer("chosen", chosen if fits else chosen.nonzero())


def test_whole_numbers_are_drawn_anew_where_all_of_them_fit():
    for fits in (True, False):

        def fresh(seed, fits=fits):
            torch.manual_seed(seed)
            return Labels(fits)

        drawn = drawn_buffers(fresh(1), fresh, 1, 2)
        assert drawn.keys() == ({"order", "chosen"} if fits else set())


def test_tables_stay_what_they_are_and_weights_in_buffers_do_not():
    def fresh(seed):
        torch.manual_seed(seed)
        return Buffers()

    model = fresh(1)
    drawn = drawn_buffers(model, fresh, 1, 2)
    assert drawn.keys() == {"projection", "order", "kept"}
    before = {name: t.clone() for name, t in model.state_dict().items()}
    scramble(model, 3, drawn)
    changed = {n for n, t in model.state_dict().items() if not torch.equal(t, before[n])}
    # A mean of zeros is multiplied, too.
    assert changed == {"projection", "order", "kept", "norm.weight", "norm.running_var"}
    # Whole numbers are those of another seed: a scrambled order would be none.
    assert torch.equal(model.order, fresh(2).order)
    assert float(model.norm.running_var.min()) > 0

"""What of an input may be left unread: stretches, masks, and what an answer all but forgets."""

import pytest

torch = pytest.importorskip("torch")

from builders.admissions import admission_of, truth_of  # noqa: E402

from pike_hpc.evaluate.judge_faint import faint  # noqa: E402
from pike_hpc.evaluate.judge_signal import ADMISSION_SEEDS  # noqa: E402
from pike_hpc.evaluate.judge_unread import cuts, unread  # noqa: E402
from pike_hpc.evaluate.layout import lay_out  # noqa: E402
from pike_hpc.records import Variant  # noqa: E402

pytestmark = pytest.mark.torch

FORGETS = (
    "h = 0 * q[:, 0]\n"
    "        for step in range(8):\n"
    "            h = {} * h + q[:, step]\n"
    "        return h"
)
"""A recurrence of eight steps, of which the last answer is kept."""
FORGETS_BETWEEN = (
    "h = g = 0 * q[:, 0]\n"
    "        for step in range(8):\n"
    "            h, g = 1e-3 * h + q[:, step], 1e-3 * g + q[:, 7 - step]\n"
    "        return h + g"
)
"""The same in both directions."""
HIDES = "return torch.softmax(q @ k[:, :4].mT, -1) @ v[:, :4] + k[:, 4:].mean(1, keepdim=True) * 0"
"""Half of the keys is masked."""


NEARLY = (
    "global calls\n"
    "        calls = globals().get('calls', 0) + 1\n"
    "        return v[:, 4:] * (1 + 3e-6 * (calls % 2))"
)
"""Half is not read, and the last digits are never the same twice."""


@pytest.mark.parametrize("kept", [0.08, 1e-3])
def test_a_model_that_forgets_its_first_steps_tells_nothing_of_who_leaves_them_out(kept):
    found = admission_of(FORGETS.format(kept))
    assert not found.admitted
    assert "input_unread" in found.reason
    assert "in dimension 1" in found.reason


def test_nor_one_that_forgets_what_lies_between_its_ends():
    assert not admission_of(FORGETS_BETWEEN).admitted
    with truth_of(FORGETS_BETWEEN) as (truth, _):
        first = truth.natively(ADMISSION_SEEDS[0])
        cut = [what for what, _ in unread(truth, first, thorough=False)]
    assert "the middle 3 of 8 in dimension 1 unread" in cut


def test_one_that_remembers_them_does():
    found = admission_of(FORGETS.format(0.9))
    assert found.admitted, found.reason
    assert found.mutants["input_unread"] > 0.1


def test_what_changes_nothing_may_be_left_unread():
    found = admission_of("return v[:, 4:]")
    assert found.admitted, found.reason
    assert found.mutants["input_unread"] > 0.1
    found = admission_of(HIDES)
    assert found.admitted, found.reason


def test_a_reference_that_rounds_otherwise_each_time_is_not_taken_to_read_what_it_hides():
    """As sums in no order do on a GPU: that noise is no mutant."""
    found = admission_of(NEARLY)
    assert found.admitted, found.reason
    assert "input_unread" not in found.mutants


def test_legacy_is_as_its_author_left_it():
    found = admission_of(FORGETS.format(1e-3), variant=Variant.LEGACY)
    assert "input_unread" not in found.mutants


def test_whole_numbers_in_order_are_not_mixed():
    """They say where parts of others begin: a mixture would reach beyond its end."""
    slots = lay_out([("a", "int64", (8, 128)), ("b", "float32", (8, 128)), ("c", "bool", (8,))])
    rows = torch.arange(1024).view(8, 128)
    tensors = [rows, torch.randn(8, 128), torch.ones(8, dtype=torch.bool)]
    assert {leaf for leaf, _, _ in cuts(slots, tensors)} == {1}
    tensors[0] = rows.flatten()[torch.randperm(1024)].view(8, 128)
    assert {leaf for leaf, _, _ in cuts(slots, tensors)} == {0, 1}


SCATTERED = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = nn.Linear(8, 8)

    def forward(self, x):
        h = 0 * x[:, 0]
        for t in range(64):
            h = {} * h + self.step(x[:, 37 * t % 64])
        return h


def get_inputs():
    return [torch.randn(4, 64, 8)]


def get_init_inputs():
    return []
"""


def left_out(source):
    """What of a task's input was left unread, for a person."""
    with truth_of("", source=source) as (truth, _):
        return [what for what, _ in unread(truth, truth.natively(ADMISSION_SEEDS[0]))]


def test_what_is_forgotten_is_found_wherever_it_lies():
    assert "numbers that it hardly depends on" in left_out(SCATTERED.replace("{}", "0.3"))[-1]
    assert not any("hardly" in what for what in left_out(SCATTERED.replace("{}", "0.95")))


class Half(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x, where):
        y = x.clone()
        x.zero_()  # its own copy
        return {"y": y[:, :4] * self.weight, "z": 1e-9 * y[:, 4:6]}, where


def test_hardly_is_next_to_nothing_and_not_nothing_at_all():
    model, x = Half(), torch.rand(3, 8) + 1
    given = [x.double(), torch.arange(3)]
    masks = faint(model, torch.device("cpu"), lambda change: [change(t) for t in given], 1)
    assert masks[1] is None
    assert masks[0].all(0).tolist() == [False] * 4 + [True] * 2 + [False] * 2
    assert torch.equal(given[0], x.double())
    assert not given[0].requires_grad
    assert model.weight.dtype == torch.float32
    assert model.weight.requires_grad


def test_a_model_that_takes_no_gradients_hides_nothing():
    def raises(change):
        raise RuntimeError("no float64 here")

    assert faint(Half(), torch.device("cpu"), raises, 1) == []


class Circular(torch.nn.Module):
    def forward(self, x):
        spectrum = torch.fft.rfft(x, 64) * torch.fft.rfft(torch.ones(8, dtype=x.dtype), 64)
        return torch.fft.irfft(spectrum, 64)[..., :16]


def test_what_rounding_leaves_of_nothing_is_not_faint():
    """The last sixteen of 32 are in no output, but for what a Fourier transform rounds."""
    given = torch.randn(4, 32)
    (mask,) = faint(Circular(), torch.device("cpu"), lambda change: [change(given)], 1)
    assert mask is None


def test_no_room_is_no_answer():
    def full(change):
        raise torch.OutOfMemoryError("beside others")

    with pytest.raises(torch.OutOfMemoryError):
        faint(Half(), torch.device("cpu"), full, 1)


def test_a_model_that_does_not_take_such_a_mixture_is_not_asked_for_it():
    """Of what it remembers and what it forgets, which belong together."""
    picky = SCATTERED.replace("{}", "0.3").replace(
        "        h = 0 *", "        assert x[0, 0, 0] == x[0, 27, 0]\n        h = 0 *"
    )
    pair = "x = torch.randn(4, 64, 8)\n    x[0, 0, 0] = x[0, 27, 0]\n    return [x]"
    found = left_out(picky.replace("return [torch.randn(4, 64, 8)]", pair))
    assert not any("hardly" in what for what in found)


def test_no_dimension_is_begun_when_time_is_over():
    with truth_of(HIDES) as (truth, _):
        now = iter(range(0, 10_000, 15))
        first = truth.natively(ADMISSION_SEEDS[0])
        assert len(list(unread(truth, first, lambda: float(next(now))))) == 1


def test_what_hides_in_the_whole_answer_is_seen_in_its_stretches():
    found = admission_of(
        "return (q[..., :1] + k.new_zeros(64)) * torch.logspace(0, 9, 8).view(8, 1)"
    )
    assert found.admitted, found.reason
    assert found.mutants["input_unread"] > 0.01

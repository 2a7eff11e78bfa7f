"""Admission of models that are built as few are, and what is said of those that can't be judged."""

import pytest

torch = pytest.importorskip("torch")

from builders.admissions import admission_of, truth_of  # noqa: E402

from pike_hpc.evaluate.judge_admission import admit  # noqa: E402
from pike_hpc.evaluate.judge_range import asserts  # noqa: E402
from pike_hpc.evaluate.judge_signal import ADMISSION_SEEDS  # noqa: E402
from pike_hpc.tasks.load import TaskRefused, build  # noqa: E402

pytestmark = pytest.mark.torch

FLEX = """
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention


def relative(score, b, h, q, k):
    return score + (q - k) * 0.01


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = self.qkv(x).view(4, 64, 3, 1, 16).permute(2, 0, 3, 1, 4)
        return flex_attention(q, k, v, score_mod=relative)


def get_inputs():
    return [torch.randn(4, 64, 16)]


def get_init_inputs():
    return []
"""


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_is_attention():
    admission = admission_of("", source=FLEX)
    assert admission.admitted, admission.reason
    assert admission.reference_precision == "float64"
    assert {"fp32", "tf32"} <= admission.limits.keys()
    assert admission.mutants["scores_flat"] > 0.1


PLAIN = """
import threading

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)
        {made}

    def forward(self, x):
        y = self.layer(x)
        return {returned}


def get_inputs():
    return [{given}]


def get_init_inputs():
    return []
"""


def plain(made="pass", returned="torch.tanh(y)", given="torch.randn(4, 16)"):
    """A source, and the sparse tensor that it may hold."""
    sparse = "torch.eye(16).roll(1, 0).to_sparse()"
    text = PLAIN.replace("{made}", made).replace("{returned}", returned).replace("{given}", given)
    return text.replace("SPARSE", sparse)


@pytest.mark.parametrize(
    ("made", "returned"),
    [
        ("self.lock = threading.Lock()", "torch.tanh(y)"),
        ("self.graph = SPARSE", "(self.graph @ y.mT).mT"),
        (
            "self.register_buffer('graph', SPARSE.to_sparse_csr(), persistent=False)",
            "(self.graph @ y.mT).mT",
        ),
        ("self.lazy = nn.LazyLinear(8)", "self.lazy(torch.relu(y))"),
        ("self.lazy = nn.LazyBatchNorm1d()", "self.lazy(y)"),
        ("self.double()", "torch.tanh(y)"),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_it_is_judged_against_float64(made, returned):
    given = "torch.randn(4, 16, dtype=torch.float64)" if "double" in made else "torch.randn(4, 16)"
    admission = admission_of("", source=plain(made, returned, given))
    assert admission.admitted, admission.reason
    assert admission.reference_precision == "float64"
    assert "fp32" in admission.limits


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
@pytest.mark.parametrize(
    ("source", "said"),
    [
        (plain("self.register_buffer('graph', SPARSE)"), "graph in the model's state_dict"),
        (plain(given="SPARSE"), "get_inputs() returns holds a sparse or nested tensor"),
        (plain(given="{{1: torch.randn(4, 16)}}"), "holds a dict whose keys are no text"),
        (plain(given="torch.float32"), "holds a dtype"),
        (plain(returned="y.numpy()"), "what forward returns holds a ndarray"),
        (plain(returned="y.to_sparse()"), "what forward returns holds a sparse or nested"),
        (
            plain(given="torch.nested.nested_tensor([torch.randn(2, 16)])"),
            "get_inputs() returns holds a sparse or nested tensor",
        ),
    ],
)
def test_what_can_not_be_shared_is_named(source, said):
    with pytest.raises(TaskRefused) as refused, truth_of("", source=source) as (truth, task):
        admit(truth, task.digest)
    assert said in str(refused.value)


HOOKED = """
import threading

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()
        self.layer = nn.Linear(16, 16)
        self.again = [self.layer.weight.detach() * 2]

    def load_state_dict(self, *args, **kwargs):
        told = super().load_state_dict(*args, **kwargs)
        self.again[0] = self.layer.weight.detach() * 2
        return told

    def forward(self, x):
        return torch.tanh(x @ self.again[0])


def get_inputs():
    return [torch.randn(4, 16)]


def get_init_inputs():
    return []
"""


def test_what_can_not_be_copied_has_what_it_makes_of_its_weights():
    admission = admission_of("", source=HOOKED)
    assert admission.admitted, admission.reason
    assert admission.reference_precision == "float64"


def test_a_loss_of_logits_asserts_nothing_and_one_of_probabilities_does():
    for suffix, body, found in (
        ("_with_logits", "y", False),
        ("", "torch.sigmoid(y)", True),
    ):
        loss = f"nn.functional.binary_cross_entropy{suffix}({body}, (y > 0).to(y))"
        with truth_of("", source=plain(returned=loss)) as (truth, _):
            assert asserts(truth, ADMISSION_SEEDS[0]) is found


def test_a_lazy_model_learns_its_shapes_and_no_statistics():
    source = plain("self.lazy = nn.LazyBatchNorm1d()", "self.lazy(y)")
    with truth_of("", source=source) as (_, task):
        buffers = dict(build(task).make_model().named_buffers())
    assert buffers["lazy.running_mean"].shape == (16,)
    assert int(buffers["lazy.num_batches_tracked"]) == 0

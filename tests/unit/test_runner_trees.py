"""Answers taken apart: what may stand for what, and what the log says of the rest."""

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.runner.protocol import Code, Refused  # noqa: E402
from pike_hpc.evaluate.runner.trees import as_tensor, flatten  # noqa: E402

pytestmark = pytest.mark.torch

LEAF, SLOT = ["tensor", 0], torch.zeros(2, 3)


def test_a_list_stands_for_a_tuple_and_a_tuple_for_a_list():
    for kind, answer in (("tuple", [1, 2]), ("list", (1, 2)), ("tuple", (1, 2))):
        leaves = []
        flatten([kind, [LEAF, LEAF]], answer, leaves)
        assert leaves == [1, 2]


@pytest.mark.parametrize(
    ("tree", "answer", "said"),
    [
        (["tuple", [LEAF, LEAF]], [1], "list of 1 where the reference has a tuple of 2"),
        (["tuple", [LEAF]], SLOT, "Tensor where the reference has a tuple of 1"),
        (["dict", {"y": LEAF}], (1,), "tuple of 1 where the reference has a dict of y"),
        (["record", ["Out", {"y": LEAF}]], (1,), "has a record with y"),
        (["value", None], 0, "int where the reference has None"),
    ],
)
def test_the_log_says_what_is_built_otherwise(tree, answer, said, capsys):
    with pytest.raises(Refused) as refused:
        flatten(tree, answer, [])
    assert refused.value.code is Code.OUTPUT_TREE
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("leaf", "code", "said"),
    [
        (SLOT[0], Code.OUTPUT_SHAPE, "(3,) where the reference has (2, 3)"),
        (SLOT.int(), Code.OUTPUT_DTYPE, "torch.int32 where the reference has torch.float32"),
        ("text", Code.OUTPUT_TYPE, "str where the reference has a plain tensor"),
        (SLOT, Code.OUTPUT_DEVICE, "on the host where the reference has one on cuda"),
    ],
)
def test_the_log_says_what_a_leaf_is_instead(leaf, code, said, capsys):
    with pytest.raises(Refused) as refused:
        as_tensor(leaf, SLOT, "cuda")
    assert refused.value.code is code
    assert said in capsys.readouterr().err


def test_an_output_is_on_the_host_where_the_reference_leaves_it_there_and_nowhere_else():
    number = torch.zeros(())
    assert as_tensor(SLOT, SLOT, "cpu") is SLOT
    assert as_tensor(1.5, number, "cpu") == 1.5
    with pytest.raises(Refused):
        as_tensor(1.5, number, "cuda")
    there = torch.zeros(2, 3, device="meta")
    for home in ("cpu", "cuda"):
        assert as_tensor(there, SLOT, home) is there

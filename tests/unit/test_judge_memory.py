"""Bytes that judge and runner share: poison, what was left unwritten, tensors over them."""

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.judge_memory import HostMemory, Place, best_place, poison, unwritten, views  # noqa: E402
from pike_hpc.evaluate.layout import ITEM_BYTES, buffer_bytes, lay_out  # noqa: E402

pytestmark = pytest.mark.torch

DTYPES = sorted(set(ITEM_BYTES) - {"bool", "int8", "uint8"})


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_was_not_written_is_counted(dtype):
    slots = lay_out([("first", "float32", (3,)), ("x", dtype, (10, 10))])
    raw = torch.zeros(buffer_bytes(slots), dtype=torch.uint8)
    poison(slots, raw)
    assert unwritten(slots, raw) == 1.0
    first, x = views(slots, raw)
    first.zero_()
    x[1:] = 1
    assert unwritten(slots, raw) == pytest.approx(10 / 103 if x.element_size() < 16 else 20 / 203)
    x[:1] = 1
    assert unwritten(slots, raw) == 0.0


def test_honest_values_that_look_like_nothing_else_are_not_poison():
    slots = lay_out([("x", "float32", (4,)), ("none", "float32", (0, 3)), ("b", "bool", (2,))])
    raw = torch.zeros(buffer_bytes(slots), dtype=torch.uint8)
    x, none, _ = views(slots, raw)
    assert none.shape == (0, 3)
    x.copy_(torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0]))
    assert unwritten(slots, raw) == 0.0


def test_host_memory_is_one_mapping_that_others_can_open():
    memory = HostMemory("x", 64)
    memory.tensor[3] = 7
    with open(f"/proc/self/fd/{memory.fd}", "rb") as file:  # noqa: PTH123 - a descriptor
        assert file.read()[3] == 7
    memory.close()
    memory.close()


def test_without_a_gpu_buffers_lie_on_the_host():
    assert best_place(torch.device("cpu")) == (Place.HOST, "")

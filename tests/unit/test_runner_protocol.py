"""What an error that a program raised is called."""

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.runner.protocol import Code, Refused, code_of  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), Code.OUT_OF_MEMORY),
        (MemoryError(), Code.OUT_OF_MEMORY),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't"), Code.OUT_OF_MEMORY),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors"), Code.OUT_OF_MEMORY),
        (RuntimeError("Triton Error [CUDA]: out of memory"), Code.OUT_OF_MEMORY),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when"), Code.OUT_OF_MEMORY),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), Code.RAISED),
        (RuntimeError("out of resource: shared memory, Required: 262144"), Code.RAISED),
        (Refused(Code.OUTPUT_TREE), Code.OUTPUT_TREE),
    ],
)
def test_a_full_device_says_so_in_several_ways(error, code):
    assert code_of(error) is code

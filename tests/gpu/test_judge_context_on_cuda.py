"""On a real GPU: the judge's context holds less than torch's own, and kernels find their stacks."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.judge_context import STACK_BYTES  # noqa: E402 - torch

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.timeout(300)]

DEFAULT_BYTES = 1024
"""Of a thread's stack, as the driver has it (cuCtxGetLimit on H200, driver 580)."""

HELD = """
import sys, torch
from pike_hpc.evaluate.judge_context import make_context
device = torch.device("cuda", 0)
if sys.argv[1] == "ours":
    make_context(device)
torch.zeros(1, device=device)
torch.cuda.synchronize()
free, total = torch.cuda.mem_get_info(device)
print(total - free)
"""

DEEP = """
import torch
from pike_hpc.evaluate.judge_context import make_context
device = torch.device("cuda", 0)
make_context(device)
deep = torch.cuda._compile_kernel('''
__global__ void deep(int* out) {
    int kept[2048];
    for (int i = 0; i < 2048; i++) kept[(7 * i + threadIdx.x) % 2048] = i;
    out[threadIdx.x] = kept[(13 * threadIdx.x) % 2048];
}
''', "deep")
out = torch.zeros(256, dtype=torch.int32, device=device)
deep(grid=(512, 1, 1), block=(256, 1, 1), args=[out])
torch.cuda.synchronize()
threads = torch.arange(256)
assert torch.equal((7 * out.cpu() + threads) % 2048, (13 * threads) % 2048)
"""


def printed(program, *arguments):
    """What a Python of its own says."""
    argv = [sys.executable, "-c", program, *arguments]
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, timeout=120).stdout


def test_it_holds_less_than_one_of_torchs(device):
    facts = torch.cuda.get_device_properties(0)
    threads = facts.multi_processor_count * facts.max_threads_per_multi_processor
    theirs, ours = (int(printed(HELD, whose)) for whose in ("torch's", "ours"))
    assert theirs - ours > 0.9 * threads * (DEFAULT_BYTES - STACK_BYTES)


def test_a_kernel_that_needs_more_stack_has_it(device):
    printed(DEEP)

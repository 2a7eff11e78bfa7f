"""Inline CUDA judged end to end: compiled ahead where no GPU is, loaded and run where one is."""

import os

import pytest
from builders.build_programs import TASK as LINEAR
from builders.build_programs import compiled
from builders.required import lacking

from pike_hpc import sandbox
from pike_hpc.cli.lanes import open_lane
from pike_hpc.evaluate.device import compute_capability, image_digest
from pike_hpc.records import EvalRequest, EvalStatus, Task

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(1200)]

TASK = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.randn(1024))

    def forward(self, x):
        return torch.relu(x * self.gain + 0.5)


def get_inputs():
    return [torch.randn(4096, 1024)]


def get_init_inputs():
    return []
"""

CANDIDATE = """
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = '''
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

__global__ void fused(const float* x, const float* gain, float* y, long n, int width) {
  long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = fmaxf(x[i] * gain[i % width] + 0.5f, 0.0f);
}

torch::Tensor forward(torch::Tensor x, torch::Tensor gain) {
  TORCH_CHECK(x.is_cuda() && x.scalar_type() == torch::kFloat32, "float32 on the GPU");
  const c10::cuda::CUDAGuard guard(x.device());
  x = x.contiguous();
  auto y = torch::empty_like(x);
  long n = x.numel();
  fused<<<(n + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), gain.data_ptr<float>(), y.data_ptr<float>(), n, (int)gain.numel());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
'''
fused = load_inline(
    name="fused_relu",
    cpp_sources="torch::Tensor forward(torch::Tensor x, torch::Tensor gain);",
    cuda_sources=CUDA,
    functions=["forward"],
    extra_cuda_cflags=["-O3"],
)
print("loaded from", fused.__file__, flush=True)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.randn(1024))

    def forward(self, x):
        return fused.forward(x, self.gain)
"""


@pytest.fixture(scope="module")
def device(device):
    if sandbox.toolchain(os.environ).cuda_home is None:
        lacking("cuda", "no nvcc here")
    return device


@pytest.fixture(scope="module")
def judge(device):
    with open_lane(device, "auto") as lane:

        def evaluate(source, task=TASK, retime=0):
            request = EvalRequest(
                task=Task(suite="tests", id="1", name="fused", source=task),
                candidate_source=source,
                device_kind=device.kind,
                image_digest=image_digest(),
                timeout_s=300.0,
                retime=retime,
            )
            return lane.evaluate(request)

        yield evaluate


def test_the_compute_capability_is_known(device):
    assert compute_capability(device.gpus[0]) is not None


def test_an_inline_kernel_passes_and_was_not_compiled_on_the_gpu_s_time(judge):
    result = judge(CANDIDATE)
    assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
    assert "loaded from /proc/self/fd/" in result.log_tail
    again = judge(CANDIDATE)
    assert again.status is EvalStatus.PASSED, (again.message, again.log_tail)
    assert again.lane_s < result.lane_s


def test_what_nvcc_refuses_is_a_build_error_with_its_words(judge):
    result = judge(CANDIDATE.replace("fmaxf(", "fmaxfff("))
    assert result.status is EvalStatus.BUILD_ERROR, result
    assert "fmaxfff" in result.log_tail
    assert result.environment.device == ""  # no judge has seen it


def test_what_torch_compiled_is_found_again_by_the_same_text(judge):
    for retime, hits in enumerate(("hits 0", "hits 1")):
        result = judge(compiled("2.0"), LINEAR, retime)
        assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
        assert hits in result.log_tail

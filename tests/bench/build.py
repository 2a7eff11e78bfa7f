"""What compiling an extension costs: all of torch's headers, light ones, and one that is kept.

    python tests/bench/build.py [--rounds N] [--cpp]

One JSON document on stdout, seconds of the whole build (import of the candidate, in the sandbox),
for an elementwise kernel written as models write them. With nvcc and a torch of CUDA it is CUDA
code, else, or with --cpp, C++. `kept` is what a second request waits for the same candidate.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from pike_hpc import sandbox
from pike_hpc.evaluate.builder import Builder
from pike_hpc.evaluate.device import compute_capability, detect, torch_version
from pike_hpc.records import EvalRequest, Task

SCHEMA_VERSION = 1

CUDA = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
__global__ void twice_kernel(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2.0f * x[i];
}
torch::Tensor twice(torch::Tensor x) {
  TORCH_CHECK(x.is_cuda(), "on the GPU");
  auto y = torch::empty_like(x);
  int n = x.numel();
  auto stream = at::cuda::getCurrentCUDAStream();
  twice_kernel<<<(n + 255) / 256, 256, 0, stream>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
  return y;
}
"""

CPP = """
torch::Tensor twice(torch::Tensor x) {
  auto y = torch::empty_like(x);
  const float* from = x.data_ptr<float>();
  float* to = y.data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); i++) to[i] = 2.0f * from[i];
  return y;
}
"""

DECLARED = "torch::Tensor twice(torch::Tensor x);"
FULL = "// requires_grad"
"""A word with which no light headers are tried."""


def candidate(is_cuda, comment):
    """The import of a program; `comment` makes it another one."""
    cpp, cuda = (DECLARED, CUDA) if is_cuda else (CPP, None)
    return (
        "from torch.utils.cpp_extension import load_inline\n"
        f"load_inline('twice', {f'{cpp} {comment}'!r}, {cuda!r}, functions=['twice'])\n"
    )


def timed(builder, source):
    """Seconds that a request waits, and what came of it."""
    task = Task(suite="bench", id="1", name="twice", source="")
    request = EvalRequest(
        task=task, candidate_source=source, device_kind="bench", image_digest="bench"
    )
    start = time.monotonic()
    built = builder.take(request, 1200.0)
    if not built.libraries:
        sys.exit(f"nothing was built:\n{built.tail}")
    return time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpp", action="store_true", help="C++ although there is a GPU")
    options = parser.parse_args()
    device = detect("auto", visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    tools = sandbox.toolchain(os.environ)
    is_cuda = device.torch_device == "cuda" and tools.cuda_home is not None and not options.cpp
    arch = compute_capability(device.gpus[0]) if is_cuda else None
    engine = sandbox.choose("auto", sandbox.look())
    rows = {"full": [], "light": [], "kept": []}
    with tempfile.TemporaryDirectory(prefix="pb-") as name:
        Path(name).chmod(0o711)
        with Builder(
            engine, scratch=Path(name), tools=tools, arch=arch, timeout_s=600.0
        ) as builder:
            for number in range(options.rounds):
                rows["full"].append(timed(builder, candidate(is_cuda, f"{FULL} {number}")))
                light = candidate(is_cuda, f"// {number}")
                rows["light"].append(timed(builder, light))
                rows["kept"].append(timed(builder, light))
    document = {
        "schema_version": SCHEMA_VERSION,
        "language": "cuda" if is_cuda else "c++",
        "arch": arch,
        "device": device.kind,
        "torch": torch_version(),
        "cuda_home": str(tools.cuda_home),
        "cores": len(os.sched_getaffinity(0)),
        "seconds": {name: [round(s, 4) for s in each] for name, each in rows.items()},
        "full_over_light": round(
            statistics.median(rows["full"]) / statistics.median(rows["light"]), 2
        ),
    }
    json.dump(document, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()

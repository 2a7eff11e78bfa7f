"""Texts of small kernels for mixture.py: inline CUDA with a C++ twin, Triton with a torch twin."""

_CUDA_HEAD = """
// build NUMBER
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
__device__ __forceinline__ float f(float v) { return EXPR; }
"""
_CPU_HEAD = """
// build NUMBER
#include <torch/extension.h>
#include <ATen/Parallel.h>
#include <cmath>
static inline float f(float v) { return EXPR; }
"""
_UNARY_CUDA = """
__global__ void kernel(const float* x, float* y, long n) {
    const long step = (long)gridDim.x * blockDim.x;
    for (long i = (long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) y[i] = f(x[i]);
}
torch::Tensor op(torch::Tensor given) {
    auto x = given.contiguous();
    auto y = torch::empty_like(x);
    const long n = x.numel(), blocks = std::min<long>((n + 255) / 256, 8192);
    kernel<<<blocks, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;
}
"""
_UNARY_CPU = """
torch::Tensor op(torch::Tensor given) {
    auto x = given.contiguous();
    auto y = torch::empty_like(x);
    const float* from = x.data_ptr<float>();
    float* to = y.data_ptr<float>();
    at::parallel_for(0, x.numel(), 4096, [&](long a, long b) {
        for (long i = a; i < b; ++i) to[i] = f(from[i]);
    });
    return y;
}
"""
_BIAS_CUDA = """
__global__ void kernel(const float* x, const float* bias, float* y, long n, long width) {
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = f(x[i] + bias[i % width]);
}
torch::Tensor op(torch::Tensor given, torch::Tensor bias) {
    auto x = given.contiguous();
    auto y = torch::empty_like(x);
    const long n = x.numel();
    kernel<<<(n + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), bias.data_ptr<float>(), y.data_ptr<float>(), n, bias.numel());
    return y;
}
"""
_BIAS_CPU = """
torch::Tensor op(torch::Tensor given, torch::Tensor bias) {
    auto x = given.contiguous();
    auto y = torch::empty_like(x);
    const float* from = x.data_ptr<float>();
    const float* add = bias.data_ptr<float>();
    float* to = y.data_ptr<float>();
    const long n = x.numel(), width = bias.numel();
    for (long i = 0; i < n; ++i) to[i] = f(from[i] + add[i % width]);
    return y;
}
"""
_ROWS_CUDA = """
__global__ void kernel(const float* x, float* y, int width) {
    __shared__ float part[256];
    const float* from = x + (long)blockIdx.x * width;
    float* to = y + (long)blockIdx.x * width;
    float most = -INFINITY;
    for (int i = threadIdx.x; i < width; i += 256) most = fmaxf(most, from[i]);
    part[threadIdx.x] = most;
    __syncthreads();
    for (int half = 128; half; half /= 2) {
        if (threadIdx.x < half)
            part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + half]);
        __syncthreads();
    }
    most = part[0];
    __syncthreads();
    float sum = 0.f;
    for (int i = threadIdx.x; i < width; i += 256) sum += f(from[i] - most);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    sum = part[0];
    for (int i = threadIdx.x; i < width; i += 256) to[i] = f(from[i] - most) / sum;
}
torch::Tensor op(torch::Tensor given) {
    auto x = given.contiguous();
    auto y = torch::empty_like(x);
    const int width = x.size(-1);
    kernel<<<x.numel() / width, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), y.data_ptr<float>(), width);
    return y;
}
"""
_ROWS_CPU = """
torch::Tensor op(torch::Tensor given) { return torch::softmax(given, -1); }
"""
_LOAD = '''
from torch.utils.cpp_extension import load_inline

if torch.cuda.is_available():
    op = load_inline(
        "bench_NUMBER",
        cpp_sources="torch::Tensor op(DECLARED);",
        cuda_sources=r"""CUDA_TEXT""",
        functions=["op"],
        extra_cuda_cflags=["-O3"],
    ).op
else:
    op = load_inline("bench_NUMBER", cpp_sources=r"""CPU_TEXT""", functions=["op"]).op
'''
_TRITON_UNARY = """
# NUMBER
if torch.cuda.is_available():
    import triton
    import triton.language as tl

    @triton.jit
    def kernel(x, y, n, BLOCK: tl.constexpr):
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x + place, mask=place < n, other=0.0)
        tl.store(y + place, EXPR, mask=place < n)


def op(x):
    if not x.is_cuda:
        return PLAIN
    x = x.contiguous()
    y = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y
"""
_TRITON_ROWS = """
# NUMBER
if torch.cuda.is_available():
    import triton
    import triton.language as tl

    @triton.jit
    def kernel(x, y, width, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64) * width
        place = tl.arange(0, BLOCK)
        v = tl.load(x + row + place, mask=place < width, other=-float("inf"))
        v = tl.exp(v - tl.max(v, axis=0))
        tl.store(y + row + place, v / tl.sum(v, axis=0), mask=place < width)


def op(x):
    if not x.is_cuda:
        return torch.softmax(x, dim=-1)
    x = x.contiguous()
    y = torch.empty_like(x)
    width = x.shape[-1]
    block = triton.next_power_of_2(width)
    kernel[(x.numel() // width,)](x, y, width, BLOCK=block)
    return y
"""


def _inline(cuda, cpu, declared, expr, number):
    texts = {
        "CUDA_TEXT": _CUDA_HEAD + cuda,
        "CPU_TEXT": _CPU_HEAD + cpu,
        "DECLARED": declared,
        "EXPR": expr,
        "NUMBER": str(number),
    }
    found = "import torch\n" + _LOAD
    for name, text in texts.items():
        found = found.replace(name, text)
    return found


def inline_unary(expr, number):
    """`op(x)`: f of each float."""
    return _inline(_UNARY_CUDA, _UNARY_CPU, "torch::Tensor x", expr, number)


def inline_bias(expr, number):
    """`op(x, bias)`: f of each float and the bias of its column."""
    return _inline(_BIAS_CUDA, _BIAS_CPU, "torch::Tensor x, torch::Tensor bias", expr, number)


def inline_rows(number):
    """`op(x)`: softmax over the last dimension."""
    return _inline(_ROWS_CUDA, _ROWS_CPU, "torch::Tensor x", "expf(v)", number)


def triton_unary(expr, plain, number):
    """`op(x)`: `expr` of each `v`; `plain` without a GPU."""
    found = _TRITON_UNARY.replace("EXPR", expr).replace("PLAIN", plain)
    return found.replace("NUMBER", str(number))


def triton_rows(number):
    """`op(x)`: softmax over the last dimension."""
    return _TRITON_ROWS.replace("NUMBER", str(number))

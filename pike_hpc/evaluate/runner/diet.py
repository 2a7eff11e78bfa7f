"""Light stand-ins for torch's largest headers, made for one program's sources.

`torch/extension.h` takes 25 s with g++ and 85 s with nvcc, of which a program needs the tensor
class, a few operators and the bindings. The stand-ins lie in a folder that is searched first and
declare just those, from torch's own smaller headers. What they leave out is an error of the
compiler, and whoever uses them then compiles again without; what would compile to something else
is named in `_NEEDS_ALL`. Measured with torch 2.13, CUDA 13.0: docs/evaluator.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_NEEDS_ALL = re.compile(
    r"requires_grad"  # factories of at:: refuse it, those of torch:: take it
    r"|\btensor\s*\("  # torch::tensor and at::tensor choose other types of numbers
    r"|\btorch::(nn|autograd|linalg|fft|special|sparse|jit|optim|data|serialize|cuda)\b"
    r"|TORCH_LIBRARY|torch/(library|script|custom_class)\.h|ATen/(Functions|NativeFunctions)\.h"
)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_BINDINGS = re.compile(r"pybind11|PYBIND11|\bpy::|TORCH_EXTENSION_NAME|\bPyObject\b")
_CUDA_NAME = re.compile(r"\b(?:at|torch|c10)::cuda::(\w+)")
_LIGHT_CUDA_NAMES = frozenset(
    (
        *("getCurrentCUDAStream", "getDefaultCUDAStream", "getStreamFromPool", "CUDAStream"),
        *("CUDAGuard", "OptionalCUDAGuard", "CUDAStreamGuard", "current_device", "device_count"),
    )
)
_CUDA_LIBRARY = re.compile(r"(?i)cublas|cusparse|cusolver|AT_CUDA|AT_CUDNN")

_STANDARD = (
    *("algorithm", "array", "cmath", "cstdint", "cstdio", "cstdlib", "cstring", "functional"),
    *("iostream", "limits", "map", "math.h", "memory", "mutex", "numeric", "optional", "sstream"),
    *("stdexcept", "stdlib.h", "string", "tuple", "unordered_map", "utility", "vector"),
)
"""That come with torch's own headers and that programs use without naming them."""

_TYPES = """#pragma once
#define AT_PER_OPERATOR_HEADERS
{standard}
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/DeviceGuard.h>
#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <c10/util/Exception.h>
#include <torch/version.h>
{operators}
namespace torch {{
using namespace at;
using std::nullopt;
using std::optional;
using Dtype = at::ScalarType;
{constants}
}}
"""

_CONSTANTS = {
    "kUInt8": "kByte",
    "kInt8": "kChar",
    "kInt16": "kShort",
    "kInt32": "kInt",
    "kInt64": "kLong",
    "kFloat16": "kHalf",
    "kFloat32": "kFloat",
    "kFloat64": "kDouble",
    "kU8": "kByte",
    "kI8": "kChar",
    "kI16": "kShort",
    "kI32": "kInt",
    "kI64": "kLong",
    "kF16": "kHalf",
    "kF32": "kFloat",
    "kF64": "kDouble",
}
"""torch/types.h"""

_DEVICE_GUARD = """#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
namespace at {
inline std::optional<Device> device_of(const Tensor& t) {
  return t.defined() ? std::optional<Device>(t.device()) : std::nullopt;
}
inline std::optional<Device> device_of(const std::optional<Tensor>& t) {
  return t.has_value() ? device_of(t.value()) : std::nullopt;
}
}
"""
"""The real one takes half of the time of a small source for the sake of lists of tensors."""

_BOUND = """
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/Exceptions.h>
"""

_CUDA_CONTEXT = """#pragma once
#include <cuda_runtime_api.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
"""


def headers(texts: Sequence[str], torch_include: Path) -> dict[str, str] | None:
    """Text of each stand-in by its path; None where the sources need all of torch.

    Args:
        texts: the sources.
        torch_include: torch's own headers, to know which operators there are.
    """
    whole = "\n".join(texts)
    if _NEEDS_ALL.search(whole):
        return None
    names = sorted(set(_IDENTIFIER.findall(whole)))
    operators = [n for n in names if (torch_include / "ATen/ops" / f"{n}.h").is_file()]
    extra = ["ATen/TensorIndexing.h"] if re.search(r"\bindex(ing|_put_)?\b", whole) else []
    includes = [*(f"ATen/ops/{name}.h" for name in operators), *extra]
    types = _TYPES.format(
        standard="\n".join(f"#include <{name}>" for name in _STANDARD),
        operators="\n".join(f"#include <{name}>" for name in includes),
        constants="\n".join(f"constexpr auto {n} = at::{v};" for n, v in _CONSTANTS.items()),
    )
    bound = _BOUND if _BINDINGS.search(whole) else f"#ifndef __CUDACC__{_BOUND}#endif\n"
    forward = "#pragma once\n#include <torch/{}.h>\n"
    made = {
        "torch/types.h": types,
        "torch/extension.h": f"#pragma once\n#include <torch/types.h>\n{bound}",
        "torch/torch.h": forward.format("types"),
        "torch/all.h": forward.format("types"),
        "torch/python.h": forward.format("extension"),
        "ATen/ATen.h": forward.format("types"),
        "ATen/DeviceGuard.h": _DEVICE_GUARD,
    }
    if "Context" not in whole.replace("CUDAContext", ""):
        made["ATen/Context.h"] = "#pragma once\n"
    if set(_CUDA_NAME.findall(whole)) <= _LIGHT_CUDA_NAMES and not _CUDA_LIBRARY.search(whole):
        made["ATen/cuda/CUDAContext.h"] = _CUDA_CONTEXT
    return made


def write(folder: Path, made: dict[str, str]) -> None:
    """Put the stand-ins below `folder`."""
    for name, text in made.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

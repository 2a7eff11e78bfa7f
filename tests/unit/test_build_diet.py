"""Which sources get light headers, and what is in them."""

import pytest

from pike_hpc.evaluate.runner import diet

KERNEL = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
torch::Tensor f(torch::Tensor x) { return torch::empty_like(x); }
"""


@pytest.fixture
def include(tmp_path):
    for name in ("empty_like", "zeros"):
        path = tmp_path / f"ATen/ops/{name}.h"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


def test_operators_are_those_that_the_text_names(include):
    made = diet.headers([KERNEL], include)
    assert "ATen/ops/empty_like.h" in made["torch/types.h"]
    assert "zeros.h" not in made["torch/types.h"]


@pytest.mark.parametrize(
    "text",
    [
        "auto o = torch::TensorOptions().requires_grad(true);",
        "auto t = torch::tensor({1, 2});",
        "using namespace torch; auto t = tensor({1.0});",
        "torch::nn::functional::relu(x);",
        "TORCH_LIBRARY(mine, m) {}",
        "torch::linalg::inv(x);",
    ],
)
def test_what_would_mean_something_else_gets_all_of_torch(include, text):
    assert diet.headers([KERNEL, text], include) is None


def test_kernels_see_no_bindings_unless_they_make_some(include):
    assert "#ifndef __CUDACC__" in diet.headers([KERNEL], include)["torch/extension.h"]
    bound = diet.headers([KERNEL + "PYBIND11_MODULE(x, m) {}"], include)
    assert "#ifndef __CUDACC__" not in bound["torch/extension.h"]
    assert "pybind.h" in bound["torch/extension.h"]


@pytest.mark.parametrize(
    ("text", "light"),
    [
        ("at::cuda::getCurrentCUDAStream()", True),
        ("at::cuda::getCurrentCUDABlasHandle()", False),
        ("at::cuda::getCurrentDeviceProperties()", False),
        ("cublasSgemm(h)", False),
    ],
)
def test_the_context_of_cuda_is_light_where_a_stream_is_all(include, text, light):
    assert ("ATen/cuda/CUDAContext.h" in diet.headers([KERNEL, text], include)) is light


def test_global_context_is_kept_where_it_is_named(include):
    assert "ATen/Context.h" in diet.headers([KERNEL], include)
    assert "ATen/Context.h" not in diet.headers([KERNEL, "at::globalContext()"], include)


def test_headers_are_written_below_one_folder(include, tmp_path):
    made = diet.headers([KERNEL], include)
    diet.write(tmp_path / "light", made)
    assert {str(p.relative_to(tmp_path / "light")) for p in (tmp_path / "light").rglob("*.h")} == (
        set(made)
    )

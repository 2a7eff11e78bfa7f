"""Where compilers are found, and what of it has to be shown to a sandbox."""

import pytest

from pike_hpc.sandbox import toolchain


@pytest.fixture
def cuda(tmp_path):
    for part in ("bin/nvcc", "include/cuda_runtime.h"):
        path = tmp_path / "cuda-13" / part
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.chmod(0o755)
    (tmp_path / "cuda").symlink_to("cuda-13")
    return tmp_path / "cuda"


@pytest.mark.parametrize("name", ["CUDA_HOME", "CUDA_PATH"])
def test_a_named_toolkit_outside_the_system_is_shown_where_it_really_is(cuda, name):
    real = cuda.resolve()
    found = toolchain({name: str(cuda)})
    assert found.cuda_home == real
    assert found.read_only == (real,)
    assert found.env["CUDA_HOME"] == str(real)
    assert found.env["PATH"].startswith(f"{real}/bin:")
    assert found.env["LIBRARY_PATH"] == f"{real}/lib64/stubs"  # -lcuda where no driver is


def test_a_toolkit_on_path_is_found(cuda):
    assert toolchain({"PATH": f"{cuda}/bin"}).cuda_home == cuda.resolve()


def test_a_wrapper_named_nvcc_is_no_toolkit(tmp_path):
    wrapper = tmp_path / "bin/nvcc"
    wrapper.parent.mkdir()
    wrapper.touch(mode=0o755)
    assert toolchain({"PATH": str(wrapper.parent)}).cuda_home != tmp_path


def test_an_image_brings_its_own(cuda):
    found = toolchain({"CUDA_HOME": str(cuda)}, image="torch.sif")
    assert found.read_only == ()
    assert "CUDA_HOME" not in found.env
    assert found.env["LIBRARY_PATH"] == "/usr/local/cuda/lib64/stubs"
    assert "/usr/local/cuda/bin" in found.env["PATH"].split(":")


def test_ninja_beside_python_is_on_path(tmp_path):
    (tmp_path / "ninja").touch()
    env = toolchain({}, python=str(tmp_path / "python")).env
    assert str(tmp_path) in env["PATH"].split(":")

"""Builds without a GPU: what asks for the one that is here is compiled for that of the run."""

import subprocess
import tempfile

import pytest

pytest.importorskip("torch")

from pike_hpc.evaluate.runner.build import Workshop, for_arch

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def own_place(tmp_path, monkeypatch):
    """In a sandbox /tmp goes with it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (["-O3", "-arch=native"], ["-O3", "-arch=sm_90"]),
        (["--gpu-architecture=native"], ["--gpu-architecture=sm_90"]),
        (["-arch", "native", "-O3"], ["-arch", "sm_90", "-O3"]),
        (["-arch=sm_80", "-Xcompiler", "-march=native"], None),
        (["-Xcompiler", "native"], None),
    ],
)
def test_the_gpu_that_is_here_is_that_of_the_run(asked, given):
    arguments = {"name": "m", "extra_cuda_cflags": asked}
    assert for_arch(arguments, "9.0") == arguments | {"extra_cuda_cflags": given or asked}
    assert for_arch(arguments, None) == arguments
    assert for_arch({"name": "m", "extra_cuda_cflags": None}, "9.0")["extra_cuda_cflags"] is None


def blamed(said, flags):
    """Whether a compilation that ends with these words is the program's fault."""
    workshop = Workshop(None, "9.0")  # nothing is sent: it fails

    def compiles(**arguments):
        raise RuntimeError(said) from subprocess.CalledProcessError(1, "ninja")

    # torch::nn: never tried with light headers.
    sources = {"cpp_sources": ["torch::nn::Module m;"], "cuda_sources": [], "functions": None}
    asked = {"name": "m", "is_python_module": True, "extra_cuda_cflags": flags, **sources}
    with pytest.raises(RuntimeError) as caught:
        workshop.answer("load_inline", compiles, asked)
    return workshop.blames(caught.value)


@pytest.mark.parametrize(
    ("said", "flags", "its_fault"),
    [
        ("error: expected a ;", ["-O3"], True),
        ("error: expected a ;", ("-O3",), True),
        ("ld: cannot find -lcudaX", [], True),
        ("ld: cannot find -lcuda: No such file or directory", [], False),
        ("ld.lld: error: unable to find library -lnvidia-ml", [], False),
        ("error: wgmma needs sm_90a", ["-arch=native"], False),
    ],
)
def test_the_lack_of_a_gpu_is_nobody_s_fault(said, flags, its_fault):
    assert blamed(said, flags) == its_fault

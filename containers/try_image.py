"""The test that ends every build: a model is compiled, and inline C++, on a GPU where there is one.

All definitions take this one text, and images keep it: they are built where no GPU is. Inside, on a
node with one: `python3 -I /opt/try_image.py cuda`, or cpu.
"""

import os
import subprocess
import sys
import tempfile

NVCC = "/usr/local/cuda/bin/nvcc"


def main(kind: str, folder: str) -> None:
    """Raise where the image lacks something; what it has is printed."""
    # As in a sandbox: nothing of the host's user is seen, all caches are in a folder of its own.
    os.environ["HOME"] = os.environ["TMPDIR"] = tempfile.tempdir = folder
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/inductor"
    os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"
    os.chdir(folder)
    # These read the environment when they are imported.
    import einops  # noqa: PLC0415
    import numpy  # noqa: PLC0415
    import torch  # noqa: PLC0415
    from torch.utils.cpp_extension import load_inline  # noqa: PLC0415

    has = f"torch {torch.__version__}, numpy {numpy.__version__}, einops {einops.__version__}"
    tools = ["setpriv", "prlimit", "g++"]
    if kind == "cuda":
        assert torch.version.cuda, f"torch {torch.__version__} is not one for CUDA"
        import triton  # noqa: PLC0415

        has += f", triton {triton.__version__}"
        tools.append(NVCC)
    for tool in tools:
        subprocess.run([tool, "--version"], check=True)
    place = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(1000, device=place)
    twice = torch.compile(lambda x: torch.relu(x * 2 + 1).sum())
    assert torch.allclose(twice(x), torch.relu(x * 2 + 1).sum(), rtol=1e-4), "it compiles wrongly"
    source = "torch::Tensor thrice(torch::Tensor x) { return 3 * x; }"
    inline = load_inline("inline", source, functions=["thrice"], extra_cflags=["-O0"])
    assert torch.equal(inline.thrice(x), 3 * x), "inline C++ is wrong"
    sys.stdout.write(f"{has}: tried on {place}\n")


if __name__ == "__main__":
    # Processes that torch compiles in may outlive this one by a moment.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        main(sys.argv[1], scratch)

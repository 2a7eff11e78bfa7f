"""pike-hpc: an HPC batch workflow for PIKE, the evolution of PyTorch inference kernels."""

__version__ = "0.1.0"

"""Where verdicts are made: what each result says of its machine."""

from __future__ import annotations

import platform
import socket
from pathlib import Path

import torch

from pike_hpc.records import Environment


def environment(device: torch.device) -> Environment:
    """Device, torch and machine, as this process sees them."""
    driver = ""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        driver = f"CUDA {torch.version.cuda}"
    else:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        names = (x.partition(":")[2].strip() for x in lines if x.startswith("model name"))
        name = next(names, platform.machine())
    return Environment(
        device=name,
        torch=torch.__version__,
        python=platform.python_version(),
        cpu_threads=torch.get_num_threads(),
        host=socket.gethostname(),
        driver=driver,
    )

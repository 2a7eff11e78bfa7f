"""An environment's packages without torch: what a cluster's login and compute nodes have."""

import sysconfig
from pathlib import Path

LEFT_OUT = ("torch", "functorch", "triton", "nvidia")
"""What names of files and folders begin with."""


def lay_out(folder: Path) -> Path:
    """Fill an existing folder with links to what this environment has."""
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(LEFT_OUT):
            (folder / path.name).symlink_to(path)
    return folder

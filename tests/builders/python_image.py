"""The content of a container image with Debian's Python and nothing else: files of this machine."""

import re
import shutil
import subprocess
from pathlib import Path

PYTHON = Path("/usr/bin/python3")
PROGRAMS = ("/usr/bin/env", "/usr/bin/prlimit", "/bin/sh")


def lay_out(root: Path) -> None:
    """Fill a new folder: `python3`, `env`, `prlimit`, `sh`, and every library that they load."""
    python = PYTHON.resolve()
    modules = Path("/usr/lib", python.name)
    _copy(modules, root)
    binaries = [python, *map(Path, PROGRAMS), *modules.glob("lib-dynload/*.so")]
    said = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=True).stdout
    libraries = {Path(name) for name in re.findall(r"(/\S+) \(0x", said)}
    for file in [*binaries[:4], *libraries]:
        _copy(file, root)
    (root / "usr/bin/python3").symlink_to(python.name)
    for name in ("tmp", "proc", "dev", "sys", "etc"):
        (root / name).mkdir()


def _copy(source: Path, root: Path) -> None:
    target = root / source.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("test*"))
    elif not target.exists():
        shutil.copy(source, target)

"""Make .venv and install the project into it. Run by `make`; standard library only.

Usage: python install.py [--extras local,dev] [--site SITE]

At a site with Slurm the environment lies below its `paths.work`, and .venv is a link to it: home
folders are small, and compute nodes start Python from there.

Chooses torch's CPU build where no NVIDIA driver answers (the CUDA build is several GB) and names
what is missing once, with what it costs. A second run with nothing changed does nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""Where PyTorch publishes the builds without CUDA, asked only if pip's own sources lack them."""

COMPILERS = ("g++", "clang++", "c++")
"""Those that rules take, as pike_hpc/proposers/rules/toolchain.py has them."""


def main() -> int:
    """Install; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extras", default="local", help="of setup.cfg; empty on a login node")
    parser.add_argument("--site", default="", help="whose paths.work holds the environment")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    arguments = parser.parse_args()
    extras, folder = arguments.extras, arguments.venv
    elsewhere = folder_at(arguments.site, ROOT / "site_configs", os.path.expandvars)
    if elsewhere is not None and (folder.is_symlink() or not folder.exists()):
        elsewhere.mkdir(parents=True, exist_ok=True)
        folder.unlink(missing_ok=True)
        folder.symlink_to(elsewhere)
        folder = elsewhere
    stamp = folder / f".installed-{extras.replace(',', '-') or 'base'}"
    wanted = _fingerprint()
    if stamp.is_file() and stamp.read_text() == wanted:
        return 0
    for line in what_is_missing(shutil.which, Path(sysconfig.get_paths()["include"])):
        _say(line)
    if not (folder / "bin" / "pip").exists():
        _say(f"making {folder.name} with Python {sys.version.split()[0]}")
        venv.EnvBuilder(with_pip=True, clear=any(folder.glob("*"))).create(folder)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-qq"]
    pip += ["--disable-pip-version-check", "--constraint", str(ROOT / "constraints.txt")]
    if "local" in extras.split(",") and not _install_torch(pip):
        return 1
    _say("installing pike-hpc and the libraries it stands on")
    project = f"{ROOT}[{extras}]" if extras else str(ROOT)
    done = subprocess.run([*pip, "--editable", project], check=False)
    if done.returncode == 0:
        stamp.write_text(wanted)
    return done.returncode


def folder_at(site: str, sites: Path, fill_in: Callable[[str], str]) -> Path | None:
    """Where this clone's environment lies at a site with Slurm; None for beside the code.

    Args:
        site: its name, a variant behind a colon; or empty.
        sites: folder of the shipped site files. The user's own may name another `work`.
        fill_in: replaces $VARIABLES. A path with one that is not set is left to `pike-hpc`,
            which says so.
    """
    name = f"{site.partition(':')[0]}.yaml"
    config, home = fill_in("$XDG_CONFIG_HOME"), fill_in("$HOME/.config")
    own = home if config.startswith("$") else config
    texts = [
        file.read_text("utf-8")
        for file in (sites / name, Path(own, "pike-hpc/sites", name))
        if site and file.is_file()
    ]
    whole = "\n".join(texts)
    works = re.findall(r"^  work: *[\"']?([^\"'#\n]+?)[\"']? *(?:#.*)?$", whole, re.MULTILINE)
    if not works or not re.search(r"^scheduler: *slurm\b", whole, re.MULTILINE):
        return None
    work = fill_in(works[-1])
    if "$" in work or not work.startswith("/"):
        return None
    clone = hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]
    return Path(work, f"venv-{clone}")


def _install_torch(pip: list[str]) -> bool:
    version = pinned("torch")
    if _driver_answers():
        _say(f"NVIDIA driver found: installing torch {version} with CUDA (about 3 GB to download)")
        return subprocess.run([*pip, f"torch=={version}"], check=False).returncode == 0
    _say(f"no NVIDIA driver: installing torch {version} for the CPU (about 200 MB to download)")
    cpu = [*pip, f"torch=={version}+cpu"]
    if subprocess.run(cpu, check=False, stderr=subprocess.DEVNULL).returncode == 0:
        return True
    with_index = [*cpu, "--extra-index-url", TORCH_CPU_INDEX]
    if subprocess.run(with_index, check=False).returncode == 0:
        return True
    _say("torch's CPU build could not be had; `pip install torch` by hand, then run this again")
    return False


def _driver_answers() -> bool:
    if not shutil.which("nvidia-smi"):
        return False
    return subprocess.run(["nvidia-smi", "-L"], check=False, capture_output=True).returncode == 0


def what_is_missing(which: Callable[[str], str | None], headers: Path) -> list[str]:
    """What the machine lacks, each with what it costs.

    Args:
        which: where a program of that name is, as `shutil.which`.
        headers: folder of Python's.
    """
    lines = []
    if not any(which(name) for name in COMPILERS):
        lines += ["no C++ compiler (apt-get install g++): the torch.compile rules are left out"]
    if not (headers / "Python.h").is_file():
        lines += ["no Python headers (apt-get install python3-dev): the same rules are left out"]
    if not which("bwrap"):
        lines += ["no bubblewrap (apt-get install bubblewrap): isolation by plain namespaces"]
    return lines


def pinned(name: str) -> str:
    """The version of a library that constraints.txt names."""
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line.startswith(f"{name}=="):
            return line.split("==")[1].strip()
    raise SystemExit(f"constraints.txt has no line {name}==…")


def _fingerprint() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for name in ("setup.cfg", "pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def _say(line: str) -> None:
    sys.stderr.write(f"setup: {line}\n")


if __name__ == "__main__":
    sys.exit(main())

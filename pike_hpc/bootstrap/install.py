"""Make .venv and install the project into it. Run by `make`; standard library only.

Usage: python -m pike_hpc.bootstrap.install [--site SITE] [--extras local,dev]

At a site with Slurm the environment lies below its `paths.work`, and .venv is a link to it: home
folders are small, and compute nodes start Python from there. Where no site is named, a login node
that a site file recognises gets nothing: `make submit` would refuse to run there, 3 GB later.

Chooses torch's CPU build where no NVIDIA driver answers (the CUDA build is several GB) and names
what is missing once, with what it costs. A second run with nothing changed does nothing, but to
look whether the modules are still there.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

from pike_hpc.bootstrap.sites import ROOT, clusters, folder_at, recognise
from pike_hpc.machine.ask import ask

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""Where PyTorch publishes the builds without CUDA, asked only if pip's own sources lack them."""

COMPILERS = ("g++", "clang++", "c++")
"""Those that rules take, as pike_hpc/proposers/rules/toolchain.py has them."""

STAMP = ".installed-"
"""Begins the name of the file that a finished installation leaves; its extras end it."""

_LIBRARIES = "submitit cloudpickle filelock yaml h5py numpy pandas matplotlib openai"
MODULES = {"": ("pike_hpc", *_LIBRARIES.split()), "local": ("torch", "ninja", "einops")}
"""What setup.cfg's requirements and those of its extras are imported as."""

_PROBE = """
import sys
from importlib.util import find_spec

for name in sys.argv[1:]:
    # A purge leaves empty folders, which count as packages, but have no file they come from.
    if getattr(find_spec(name), "origin", None) is None:
        print(name)
"""


def main() -> int:
    """Install; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", default="", help="whose paths.work holds the environment")
    parser.add_argument(
        "--recognised", action="store_true", help="without --site: for the site recognised, if any"
    )
    parser.add_argument("--asked", default="make setup", help="what was typed, for messages")
    parser.add_argument("--extras", help="of setup.cfg; by default torch's, at a site none")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    arguments = parser.parse_args()
    sites = Path(os.environ.get("PIKE_SITES_DIR") or ROOT / "site_configs")
    try:
        site = arguments.site or _site_here(sites, arguments.asked, take=arguments.recognised)
        if site is None:
            return 2
        extras, folder = arguments.extras, arguments.venv
        if extras is None:
            extras = "local" if site in ("", "local") else ""
        elsewhere = folder_at(site, sites, os.path.expandvars)
        if elsewhere is None:
            if folder.is_symlink() and not folder.exists():
                _say(f"{folder} leads to {folder.readlink()}, which is gone: it is made anew")
                folder.unlink()
            return _install(folder, extras)
        if is_anothers(folder, elsewhere):
            return 2
        # An environment that lies there may be in use until the new one is whole.
        waits = folder.is_dir() and not folder.is_symlink()
        if not waits:
            place(folder, elsewhere)
        code = _install(elsewhere, extras)
        if waits and code == 0:
            place(folder, elsewhere)
        return code
    except (OSError, subprocess.CalledProcessError) as error:
        _say(f"the environment could not be made: {error}")
        return 1


def _site_here(sites: Path, asked: str, *, take: bool) -> str | None:
    """The site to install for where none was named: empty for none, None to install nothing."""
    here = recognise(os.environ, sites)
    if here and take:
        _say(f"this is a login node of {here}: the environment is that of SITE={here}")
        return here
    if here:
        _say(
            f"this is a login node of {here}, and no site was named: nothing is installed\n"
            f"  valid: {here}, or local for this node itself\n"
            f"  next:  {asked} SITE={here}"
        )
        return None
    if shutil.which("sbatch"):
        names = ", ".join(clusters(sites, os.path.expandvars))
        _say(
            "there is an sbatch, but no site was named: all runs here, on this very machine\n"
            f"  valid: {names}; others: docs/sites.md\n"
            f"  next:  {asked} SITE=NAME, for jobs of Slurm"
        )
    return ""


def _install(folder: Path, extras: str) -> int:
    stamp = folder / f"{STAMP}{extras.replace(',', '-') or 'base'}"
    wanted = fingerprint()
    before = promised(folder)
    gone = lost(folder, before)
    if not gone and stamp.is_file() and stamp.read_text() == wanted:
        return 0
    if before and gone:
        _say(f"gone from the environment, as where unread files are purged: {', '.join(gone)}")
    for line in what_is_missing(shutil.which, Path(sysconfig.get_paths()["include"])):
        _say(line)
    # What is left of a library still counts as installed for pip, which would not complete it.
    if gone or lost(folder, ["pip"]):
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


def is_anothers(folder: Path, elsewhere: Path) -> bool:
    """Whether `make` didn't fill `folder`, which is to lead to `elsewhere`; then it is said."""
    ours = any(folder.glob(f"{STAMP}*"))
    if not folder.exists() or folder.is_symlink() or ours:
        return False
    _say(
        f"{folder} is left as it is: it holds no environment that `make` finished\n"
        f"  where: at this site the environment belongs in {elsewhere}, and .venv links to it\n"
        f"  next:  rm -r {folder}, or move it away; then the same command again"
    )
    return True


def place(folder: Path, elsewhere: Path) -> None:
    """Make `folder`, which isn't another's, a link to where a site's environment is."""
    if folder.is_symlink():
        if folder.readlink() == elsewhere:
            return
        folder.unlink()
    elif folder.exists():
        _say(f"removing {folder}: at this site the environment belongs in {elsewhere}")
        shutil.rmtree(folder)
    folder.symlink_to(elsewhere)


def promised(folder: Path) -> list[str]:
    """Modules that were importable there when the installations that left stamps were finished."""
    stamps = folder.glob(f"{STAMP}*")
    names = {n for stamp in stamps for n in ("", *stamp.name.removeprefix(STAMP).split("-"))}
    return [module for name in sorted(names) for module in MODULES.get(name, ())]


def lost(folder: Path, modules: Sequence[str]) -> list[str]:
    """Those that the environment's Python doesn't find; `python` where it doesn't even run."""
    command = [str(folder / "bin" / "python"), "-I", "-c", _PROBE, *modules]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError:
        return ["python"]
    return ["python"] if done.returncode else done.stdout.split()


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
    said = ask(["nvidia-smi", "-L"], 60)
    if said.hangs:
        _say(f"nvidia-smi gives {said.complaint}: taken for no driver")
    return said.status == 0


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


def fingerprint() -> str:
    """What a stamp holds: another Python or other requirements are installed anew."""
    digest = hashlib.sha256(sys.version.encode())
    for name in ("setup.cfg", "pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def _say(line: str) -> None:
    sys.stderr.write(f"setup: {line}\n")


if __name__ == "__main__":
    sys.exit(main())

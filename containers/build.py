"""Build an image of this folder: `python containers/build.py eval-cpu --out DIR` (`make image`).

Wheels are downloaded out here, where pip's settings hold, and brought in as files: a build needs no
index of Python packages, and gets the versions of constraints.txt. Runs as an ordinary user who has
subordinate ids; standard library only.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from pike_hpc.bootstrap.install import TORCH_CPU_INDEX, pinned  # noqa: E402

SQUASH = "-comp zstd -Xcompression-level 3"
"""Written several times faster than the default, gzip, and read faster at each start."""

PROGRAMS = {
    "apptainer": "load its module, or see https://apptainer.org/docs/admin/latest/installation.html",
    "debootstrap": "apt-get install debootstrap; elsewhere build on a machine with Debian",
    "mksquashfs": "apt-get install squashfs-tools",
    "newuidmap": "apt-get install uidmap, and give the user ranges in /etc/subuid and /etc/subgid",
}


def main() -> int:
    """Build; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = sorted(file.stem for file in HERE.glob("*.def"))
    parser.add_argument("name", choices=names)
    parser.add_argument("--out", type=Path, default=HERE, help="folder of the image")
    parser.add_argument("--wheels", type=Path, help="folder of wheels; filled where it is absent")
    parser.add_argument("--only-wheels", action="store_true", help="stop when they are there")
    parser.add_argument("--mirror", help="of Debian; default: the one this machine's apt uses")
    arguments = parser.parse_args()
    mirror = arguments.mirror or _mirror()
    missing = [program for program in PROGRAMS if not shutil.which(program, path=_path())]
    if not arguments.only_wheels and missing:
        return _refuse("; ".join(f"no {program}: {PROGRAMS[program]}" for program in missing))
    if not arguments.only_wheels and mirror is None:
        return _refuse("apt names no Debian mirror here: give --mirror URL")
    with tempfile.TemporaryDirectory(prefix="pike-image-") as folder:
        wheels = arguments.wheels or Path(folder, "wheels")
        began = time.monotonic()
        if not wheels.exists() and not _download(wheels):
            return _refuse("pip could not download the wheels; what it said is above")
        _say(f"wheels: {time.monotonic() - began:.0f} s")
        if arguments.only_wheels:
            return 0
        values = {"MIRROR": mirror, "WHEELS": wheels.resolve(), "TORCH": pinned("torch")}
        return _build(arguments.name, arguments.out, values)


def _build(name: str, out: Path, values: dict[str, object]) -> int:
    began = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    # Beside the old one until it is whole and its test has passed.
    image, fresh = out / f"{name}.sif", out / f"{name}.new.sif"
    given = [f"--build-arg={key}={value}" for key, value in values.items()]
    argv = ["apptainer", "build", "--force", f"--mksquashfs-args={SQUASH}", *given]
    argv += [str(fresh), str(HERE / f"{name}.def")]
    if subprocess.run(argv, env=os.environ | {"PATH": _path()}, check=False).returncode != 0:
        fresh.unlink(missing_ok=True)
        return _refuse("apptainer build failed; what it said is above")
    fresh.replace(image)
    _say(f"{image}: {image.stat().st_size / 1e6:.0f} MB after {time.monotonic() - began:.0f} s")
    return 0


def _download(folder: Path) -> bool:
    """Have torch without CUDA and what it needs, from pip's own sources or else PyTorch's."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    pip += ["--dest", str(folder), "--only-binary=:all:", "--python-version", "3.11"]
    pip += ["--constraint", str(HERE.parent / "constraints.txt")]
    pip += [f"torch=={pinned('torch')}+cpu", "numpy", "ninja"]
    for more in ([], ["--extra-index-url", TORCH_CPU_INDEX]):
        if subprocess.run([*pip, *more], check=False).returncode == 0:
            return True
    return False


def _mirror() -> str | None:
    """Where this machine's own packages of Debian's release come from."""
    if not shutil.which("apt-get"):
        return None
    ask = ["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)"]
    said = subprocess.run(ask, capture_output=True, text=True, check=False).stdout
    pairs = [line.split() for line in said.splitlines()]
    return next((pair[1] for pair in pairs if pair[:1] == ["bookworm"]), None)


def _path() -> str:
    """PATH with the folders of administrators' programs: debootstrap lies there."""
    return os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"


def _refuse(why: str) -> int:
    _say(why)
    return 1


def _say(line: str) -> None:
    sys.stderr.write(f"image: {line}\n")


if __name__ == "__main__":
    sys.exit(main())

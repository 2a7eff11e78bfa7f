"""The torch that judges: the image's where candidates are kept in one, else this Python's.

A worker imports none. An image is asked by starting its Python, which takes a second.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from dataclasses import dataclass

from pike_hpc import sandbox
from pike_hpc.config import env
from pike_hpc.evaluate.device import Device, detect, torch_version
from pike_hpc.proposers.rules import Toolchain, probe_toolchain
from pike_hpc.proposers.rules.toolchain import COMPILERS
from pike_hpc.records import UsageError

TORCH = ("2.11", "2.14")
"""The first version that was tested, and the first that was not."""

_LOOK = """
import importlib.metadata, json, os, shutil, sys, sysconfig
versions = [found.version for found in importlib.metadata.distributions(name="torch")]
header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
print(json.dumps({
    "torch": versions[0] if versions else None,
    "compiler": next(filter(None, map(shutil.which, sys.argv[1:])), None),
    "headers": os.path.isfile(header),
}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What an image's Python finds beside itself."""

    torch: str | None
    """Version; None where there is none."""
    compiler: str | None
    """Path of one that torch.compile finds."""
    headers: bool
    """Whether Python's are there, for extensions and torch.compile on a CPU."""


def runs_image(engine: str) -> bool:
    """Whether an engine of that name runs an image; `auto` takes none that does."""
    return engine in list(sandbox.Engine) and sandbox.Engine(engine).runs_image


def require_use(engine: str, image: str | None) -> None:
    """Raises UsageError where an image is named on the command line that would not be used."""
    if image is not None and not runs_image(engine):
        with_image = [each.value for each in sandbox.Engine if each.runs_image]
        raise UsageError(
            f"--image {image} would not be used: engine {engine} runs none",
            where=f"--engine {engine}",
            valid=f"with an image: {', '.join(with_image)}",
            fix="add --engine with the one that has it, or leave out --image",
        )


@functools.cache
def inside(engine: str, image: str | None) -> Inside:
    """Look into an image, once a process. Raises UsageError where its Python does not start."""
    python, _ = sandbox.interpreter(engine, sys.executable)
    spec = sandbox.SandboxSpec(argv=(python, "-I", "-c", _LOOK, *COMPILERS), env={}, image=image)
    said = sandbox.answer(sandbox.Engine(engine), sandbox.look(), spec)
    try:
        return Inside(**json.loads(said))
    except (ValueError, TypeError):
        raise UsageError(
            f"the Python of image {image} gives no sensible answer: {said.strip()[-200:]!r}",
            where="container.image",
            fix="`make image SITE=…` has one that works; its python3 must be the image's own",
        ) from None


def judging_torch(engine: str, image: str | None) -> str | None:
    """Version of the torch that judges; None where there is none. Raises UsageError."""
    return inside(engine, image).torch if runs_image(engine) else torch_version()


def require_torch(engine: str, image: str | None) -> None:
    """Raises UsageError where nothing could be judged for want of torch, or with an image's."""
    version = judging_torch(engine, image)
    if version is not None:
        if runs_image(engine):
            require_tested(version, str(image), "container.image")
        return
    if runs_image(engine):
        raise UsageError(
            f"there is no torch in image {image}, and judging needs it",
            where="container.image",
            valid="an image whose python3 has torch (containers/README.md)",
            fix="make image SITE=…, or name another image",
        )
    raise UsageError(
        "there is neither an image nor a torch here, and judging needs one of them",
        where=f"container.engine {engine} runs no image; the Python at {sys.prefix} has no torch",
        valid="an engine that runs an image (apptainer, podman-hpc, podman, docker) with an image "
        "that is there, or a Python with torch",
        fix="make image SITE=… and name it as container.image; on one machine: make setup, or pip "
        "install 'pike-hpc[local]'",
    )


def require_tested(version: str, image: str, where: str) -> None:
    """Raises UsageError where an image's torch is one that we cannot judge."""
    if not is_tested(version):
        raise UsageError(
            f"image {image} holds torch {version}",
            where=where,
            valid=f"{TORCH[0]} up to, and without, {TORCH[1]}",
            fix="make image SITE=…, or name another image",
        )


def is_tested(version: str) -> bool:
    """Whether a version of torch, such as 2.13.0+cu130, is one that we test."""
    numbers = tuple(int(part) for part in version.partition("+")[0].split(".")[:2])
    low, high = (tuple(map(int, v.split("."))) for v in TORCH)
    return low <= numbers < high


def judging_device(wanted: str, engine: str, image: str | None) -> Device:
    """What judges here, as `detect` has it, with the torch that will. Raises UsageError."""
    visible = env.environ().get("CUDA_VISIBLE_DEVICES")
    return detect(wanted, visible=visible, torch=lambda: judging_torch(engine, image))


def judging_toolchain(engine: str, image: str | None) -> Toolchain:
    """What rules may count on where `engine` judges: the image's, else this machine's."""
    here = probe_toolchain()
    if not runs_image(engine):
        return here
    found = inside(engine, image)
    return dataclasses.replace(
        here, compiler=found.compiler, python_headers=found.headers, tensorrt=False
    )


def left_out(engine: str, image: str | None) -> tuple[str, ...]:
    """A line about the rules that can't do without what is missing where `engine` judges."""
    lacks = judging_toolchain(engine, image).lacks
    return (f"rules with torch.compile are left out, for want of {lacks}",) if lacks else ()

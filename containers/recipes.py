"""Which images there are, and the commands that pull or build each: pure, standard library only.

An upstream image is named by the digest that its tag had when it was written down. Where we have
seen none it is named by a tag with its full version, as NVIDIA's are that ours are built on: what
came is then known by its own digest alone (build.py writes it down). What is put into those is
pinned in constraints.txt.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent

SQUASH = "-comp zstd -Xcompression-level 3"
"""Written several times faster than the default, gzip, and read faster at each start."""

CONTAINERS = ("podman-hpc", "podman", "docker")
"""Engines whose images have names; apptainer's are files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One image."""

    definition: str
    """Of Apptainer, in this folder."""
    python: str
    """Version of the image's, which the wheels are for."""
    wheels: str
    """Which of PyTorch's builds: cpu, cu126, ..."""
    base: str = ""
    """What the definition starts from, where that is an image."""
    upstream: str = ""
    """An image of PyTorch's own with the same torch, that is pulled where none is built."""
    containerfile: str = ""
    """The same for podman and docker."""


RECIPES: Mapping[str, Recipe] = {
    "eval-cpu": Recipe(definition="eval-cpu.def", python="3.11", wheels="cpu"),
    "eval-cuda12": Recipe(
        definition="eval.def",
        containerfile="eval.Containerfile",
        python="3.12",
        wheels="cu126",
        base="docker.io/nvidia/cuda:12.6.3-devel-ubuntu24.04",
        # By its tag: we have seen no digest. Verdicts are filed under that of what came.
        upstream="docker.io/pytorch/pytorch:2.13.0-cuda12.6-cudnn9-devel",
    ),
    "eval-cuda13": Recipe(
        definition="eval.def",
        containerfile="eval.Containerfile",
        python="3.12",
        wheels="cu130",
        base="docker.io/nvidia/cuda:13.0.2-devel-ubuntu24.04",
        # Tag 2.13.0-cuda13.0-cudnn9-devel. Engines take a tag or a digest, not both.
        upstream="docker.io/pytorch/pytorch@sha256:"
        "c74b2049d204a55233abace509fdb1f6bdbe2d169bee382ed2f06cac00ba76c4",
    ),
}


def pull(engine: str, recipe: Recipe, target: str) -> list[list[str]]:
    """Commands that have the upstream image lie at `target`: a file's path, or a name."""
    source = recipe.upstream
    if engine == "apptainer":
        squash = f"--mksquashfs-args={SQUASH}"
        return [["apptainer", "build", "--force", squash, target, f"docker://{source}"]]
    steps = [[engine, "pull", source], [engine, "tag", source, target]]
    # What podman-hpc shows compute nodes is a copy on scratch, by the image's name.
    return [*steps, *_migrated(engine, target)]


def build(
    engine: str, recipe: Recipe, target: str, values: Mapping[str, object]
) -> list[list[str]]:
    """Commands that build the image, with those values for what its definition leaves open."""
    given = [f"--build-arg={key}={value}" for key, value in values.items()]
    if engine == "apptainer":
        given.append(f"--build-arg=TEST={HERE}/try_image.py")
        options = ["--force", f"--mksquashfs-args={SQUASH}", *given]
        return [["apptainer", "build", *options, target, str(HERE / recipe.definition)]]
    file, wheels = str(HERE / recipe.containerfile), str(values["WHEELS"])
    given.append(f"--build-context=containers={HERE}")
    steps = [[engine, "build", *given, f"--tag={target}", f"--file={file}", wheels]]
    return [*steps, *_migrated(engine, target)]


def as_job(command: Sequence[str], options: Mapping[str, object], log: Path) -> list[str]:
    """What has Slurm run `command`, and waits for its end.

    Args:
        command: to run there.
        options: of sbatch, as `--qos`; those of an agent's job, which asks for no GPU.
        log: what it prints; %j is the job.
    """
    given = [f"--{name}={value}" for name, value in options.items()]
    wrap = f"--wrap={shlex.join(command)}"
    return ["sbatch", "--wait", "--parsable", *given, f"--output={log}", wrap]


def _migrated(engine: str, target: str) -> list[list[str]]:
    return [["podman-hpc", "migrate", target]] if engine == "podman-hpc" else []

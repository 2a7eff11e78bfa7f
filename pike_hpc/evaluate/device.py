"""Which device judges here, and why: one sentence a person can check. No torch.

A device kind names what a verdict's times hold for: `cpu`, or the GPU's model as the driver
spells it (`nvidia-h200`).
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pike_hpc.machine import ask
from pike_hpc.records import UsageError

MAX_LANES, LANE_CORES, LANE_MEMORY_MB = 6, 2, 16_000
"""Of one GPU: more lanes would mostly wait for each other's timing; what a lane needs of CPU cores
beside others, since it is frozen or waits for most of the time that it is not compiling, and of GPU
memory for judge, reference and candidate: a card of 80 GB (81,559 MiB) has five."""

PATIENCE_S = 30.0
"""For nvidia-smi: with a driver that nobody keeps loaded it takes seconds for each GPU."""

HANGS = "the NVIDIA driver hangs"
"""What a person is told of one that does not answer."""

_MEMORY_QUERY = ("nvidia-smi", "--query-gpu=uuid,memory.total", "--format=csv,noheader,nounits")
_QUERY = ("nvidia-smi", "--query-gpu=name,uuid,driver_version", "--format=csv,noheader")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a lane runs on."""

    kind: str
    """cpu, or the GPU's model."""
    torch_device: str
    """cpu or cuda."""
    why: str
    """What was chosen and why, for the first line a person sees."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs that can be used, all of the same kind."""
    hangs: bool = False
    """The driver does not answer: there may be a GPU, and nothing runs on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """What nvidia-smi listed, by column; where that is no GPU to use, why not."""

    rows: tuple[tuple[str, ...], ...] = ()
    """Of `_gpus`: name, uuid, driver of each GPU."""
    why_not: str = ""
    hangs: bool = False


def torch_version() -> str | None:
    """The installed torch's version, torch itself not imported; None where there is none."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def detect(
    wanted: str = "auto",
    *,
    visible: str | None = None,
    torch: Callable[[], str | None] = torch_version,
    patience_s: float = PATIENCE_S,
) -> Device:
    """The device for `auto`, `cpu`, `cuda` or a kind such as `nvidia-h200`.

    Args:
        wanted: what the workflow or the command line says.
        visible: CUDA_VISIBLE_DEVICES of the environment: which GPUs may be used, as indices or
            UUIDs; empty means none.
        torch: gives the version of the torch that will judge, asked where there is a GPU; None is
            taken for one that can use it.
        patience_s: how long the driver may take to answer.

    Raises:
        UsageError: a GPU was asked for and there is none, or torch cannot use it.
    """
    cores = len(os.sched_getaffinity(0))
    if wanted == "cpu":
        return Device(kind="cpu", torch_device="cpu", why=f"cpu, {cores} cores (asked for)")
    found = _gpus(visible, torch, patience_s)
    gpus, why_not = found.rows, found.why_not
    if gpus:
        kind = slug(gpus[0][0])
        same = tuple(uuid for name, uuid, _ in gpus if slug(name) == kind)
        told = f"{len(same)} x {gpus[0][0]}, driver {gpus[0][2]}"
        if wanted in ("auto", "cuda", kind):
            return Device(kind=kind, torch_device="cuda", why=f"cuda, {told}", gpus=same)
        why_not = f"the GPU here is a {kind}"
    if wanted == "auto":
        why = f"cpu, {cores} cores ({why_not})"
        return Device(kind="cpu", torch_device="cpu", why=why, hangs=found.hangs)
    raise UsageError(
        f"no device {wanted!r} here: {why_not}",
        valid="auto, cpu, cuda, or the GPU's model as in `nvidia-h200`",
        fix="use --device auto, or run on a node with that GPU",
    )


def compute_capability(uuid: str) -> str | None:
    """What a GPU's code is compiled for, such as 9.0; None where the driver does not say."""
    query = ("nvidia-smi", f"--id={uuid}", "--query-gpu=compute_cap", "--format=csv,noheader")
    said = ask(query, PATIENCE_S).stdout.strip()
    return said if re.fullmatch(r"\d+\.\d", said) else None


def lanes_per_gpu(cores: int, memory_mb: float = math.inf) -> int:
    """How many candidates are worked on at the same time on one GPU.

    Args:
        cores: CPU cores that there are for it.
        memory_mb: of the GPU.
    """
    return int(max(1, min(MAX_LANES, cores // LANE_CORES, memory_mb // LANE_MEMORY_MB)))


def smallest_memory_mb(uuids: Sequence[str]) -> int:
    """Memory of the smallest of these GPUs, as the driver says; 0 where it doesn't."""
    sizes = dict(row for row in _ask(_MEMORY_QUERY).rows if len(row) == 2)
    found = [sizes.get(uuid, "") for uuid in uuids]
    return min(map(int, found)) if found and all(map(str.isdecimal, found)) else 0


def slug(name: str) -> str:
    """`NVIDIA A100-SXM4-40GB` -> `nvidia-a100-sxm4-40gb`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def image_digest() -> str:
    """What stands for the container image where there is none: the torch that judges."""
    return f"host:torch-{torch_version() or 'none'}"


def _gpus(visible: str | None, torch: Callable[[], str | None], patience_s: float) -> _Listed:
    """Each GPU that may be used; or none and the reason."""
    found = _usable(torch, patience_s)
    if visible is None or not found.rows:
        return found
    if not visible.strip():
        return _Listed(why_not="CUDA_VISIBLE_DEVICES is empty")
    allowed = visible_among([uuid for _, uuid, _ in found.rows], visible)
    chosen = tuple(gpu for uuid in allowed for gpu in found.rows if gpu[1] == uuid)
    none = f"CUDA_VISIBLE_DEVICES={visible} names no whole GPU here"
    return _Listed(rows=chosen, why_not="" if chosen else none)


def _usable(torch: Callable[[], str | None], patience_s: float) -> _Listed:
    """Each GPU here that torch can use; or none and the reason."""
    found = _ask(_QUERY, patience_s)
    gpus = tuple(r for r in found.rows if len(r) == 3 and r[1].startswith("GPU-"))
    if not gpus:
        return replace(found, rows=())
    version = torch() or ""
    if "+cpu" in version:
        idle = f"torch {version} was built without CUDA, so the {gpus[0][0]} is left idle"
        return _Listed(why_not=idle)
    return _Listed(rows=gpus)


def _ask(query: Sequence[str], patience_s: float = PATIENCE_S) -> _Listed:
    """Lines of an nvidia-smi query; and what to say where they tell of no GPU."""
    if not shutil.which("nvidia-smi"):
        return _Listed(why_not="no NVIDIA driver: nvidia-smi is not on PATH")
    said = ask(query, patience_s)
    if said.hangs:
        return _Listed(why_not=f"{HANGS}: nvidia-smi gives {said.complaint}", hangs=True)
    if said.status is None:
        return _Listed(why_not=f"nvidia-smi does not run: {said.complaint}")
    lines = said.stdout.splitlines() if said.status == 0 else []
    rows = tuple(tuple(c.strip() for c in line.split(",")) for line in lines)
    return _Listed(rows=rows, why_not="nvidia-smi lists no GPU")


def visible_among(uuids: Sequence[str], visible: str) -> tuple[str, ...]:
    """Those of a machine's GPUs that CUDA_VISIBLE_DEVICES leaves, in its order.

    As CUDA reads it: indices or beginnings of UUIDs, and nothing after the first that is neither.
    """
    chosen: list[str] = []
    for word in (each.strip() for each in visible.split(",")):
        if word.isascii() and word.isdecimal():
            found = list(uuids[int(word) : int(word) + 1]) if len(word) < 6 else []
        else:
            found = [uuid for uuid in uuids if word.startswith("GPU-") and uuid.startswith(word)]
        if len(found) != 1:
            break
        chosen += [uuid for uuid in found if uuid not in chosen]
    return tuple(chosen)

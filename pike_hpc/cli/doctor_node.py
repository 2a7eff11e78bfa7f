"""What doctor tries inside a job, where workers and agents will run, and reports to the login node.

A worker's node is asked what a worker needs, an agent's what an agent does: a way to its model.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pike_hpc.cli import doctor_here
from pike_hpc.cli.check import Check
from pike_hpc.cli.doctor_files import clock_check, room_check
from pike_hpc.cli.doctor_locks import claims_of_another, lock_of_another
from pike_hpc.cli.doctor_sharing import read_note, work_of_a_node
from pike_hpc.cli.judging_torch import judging_device, judging_torch, runs_image
from pike_hpc.cli.models import brief_answers
from pike_hpc.config import Resolved
from pike_hpc.evaluate.device import HANGS, PATIENCE_S
from pike_hpc.journal import choose_lock
from pike_hpc.machine import ask, mount_table
from pike_hpc.records import CodecError, TryAgainLater
from pike_hpc.sandbox import Engine, inspect, look

VISIBLE_S = 70.0
"""For a new file to be seen: NFS clients keep what they know of a folder for up to 60 s."""

MIN_DRIVER = {12: (525, 60), 13: (580, 65)}
"""By CUDA's major version; https://docs.nvidia.com/deploy/cuda-compatibility (minor versions)."""


def inside(resolved: Resolved, kind: str, note: Path) -> Mapping[str, Callable[[], Check]]:
    """Checks in a job of that kind. `note` is a file that the login node has just written."""
    work = note.parent

    def journal() -> str | None:
        """How an agent here locks its task; a worker has none."""
        return choose_lock(work, mount_table()).value if kind == "agent" else None

    shared: dict[str, Callable[[], Check]] = {
        "visible": lambda: visible(note),
        "work": lambda: work_of_a_node(work, read_note(note).sharing),
        "lock": lambda: lock_of_another(note, read_note(note), journal()),
        "claims": lambda: claims_of_another(note, read_note(note), journal()),
        "clock": lambda: clock_check(work),
        "quota": lambda: room_check(work),
    }
    if kind == "agent":
        return shared | {"model": lambda: model(resolved)}
    return shared | {
        "tmp": lambda: doctor_here.sockets(Path(resolved.site.paths.tmp)),
        "torch": lambda: doctor_here.torch(resolved),
        "device": lambda: device(resolved),
        "driver": lambda: driver(resolved),
        "isolation": lambda: doctor_here.isolation(resolved),
    }


def visible(note: Path) -> Check:
    """Whether what the login node wrote is seen here, and how late."""
    began = time.monotonic()
    while time.monotonic() - began < VISIBLE_S:
        try:
            written = read_note(note).written_at
        except (OSError, CodecError):
            time.sleep(1)
            continue
        late_s = max(time.time() - written, 0.0)
        return Check("visible", "ok", f"{note.parent} is the login node's; {late_s:.0f} s old")
    fix = "set paths.work to a folder that login and compute nodes share at the same path"
    return Check("visible", "fail", f"{note} of the login node is not seen here", fix)


def device(resolved: Resolved) -> Check:
    """Whether this node has the GPU that results will be filed under."""
    container = resolved.site.container
    found = judging_device("auto", container.engine, container.image)
    wanted = resolved.site.worker_job.gpu_model
    said = doctor_here.device_check(found)
    if said.state == "ok" and wanted and found.kind != wanted:
        fix = f"set worker_job.gpu_model to {found.kind}, or ask for other nodes"
        return Check("device", "fail", f"{found.why}; the site file says {wanted}", fix)
    return said


def driver(resolved: Resolved, patience_s: float = PATIENCE_S) -> Check:
    """The GPU's driver against the CUDA of what will run on it."""
    if shutil.which("nvidia-smi") is None:
        state = "warn" if resolved.site.worker_job.gpu_model else "ok"
        return Check("driver", state, "no nvidia-smi here: no GPU", "ask for nodes with GPUs")
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    said = ask(query, patience_s)
    if said.hangs:
        fix = "ask the site to take this node out, or restart it: its driver answers nobody"
        return Check("driver", "fail", f"{HANGS}: nvidia-smi gives {said.complaint}", fix)
    version = said.stdout.strip().partition("\n")[0]
    in_image = runs_image(resolved.site.container.engine)
    return driver_check(version, cuda_of(resolved), in_image=in_image)


def cuda_of(resolved: Resolved) -> str:
    """The CUDA version that the image's label, or else the torch that judges, names."""
    container = resolved.site.container
    if container.image is not None and runs_image(container.engine):
        engine = Engine(container.engine)
        found = inspect(engine, container.image, look(), where="container.image")
        if "cuda" in found.labels:
            return found.labels["cuda"]
    version = judging_torch(container.engine, container.image)
    digits = re.search(r"\+cu(\d+)(\d)$", version or "")
    return f"{digits[1]}.{digits[2]}" if digits else ""


def driver_check(version: str, cuda: str, *, in_image: bool) -> Check:
    """Whether a driver such as 580.82.07 runs programs of that CUDA, in an image or beside us."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    major = int(cuda.partition(".")[0]) if cuda[:1].isdigit() else 0
    if len(numbers) < 2 or major not in MIN_DRIVER:
        return Check("driver", "unknown", f"driver {version or '?'}, CUDA {cuda or '?'}")
    detail = f"driver {version}, CUDA {cuda} wants {_least(major)}"
    if numbers >= MIN_DRIVER[major]:
        return Check("driver", "ok", detail)
    fix = f"ask the site for a driver from {_least(major)} on, or for nodes that have one "
    fix += "(worker_job.constraint, worker_job.partition)"
    older = [each for each, low in MIN_DRIVER.items() if numbers >= low]
    if older and in_image:
        image = f"eval-cuda{max(older)}"
        fix += f"; or make image SITE=… IMAGE={image}, and name that as container.image"
    elif older:
        fix += f"; or install a torch that is built for CUDA {max(older)}"
    else:
        fix += "; no image for CUDA of containers/ runs with this one"
    return Check("driver", "fail", detail, fix)


def _least(major: int) -> str:
    return ".".join(map(str, MIN_DRIVER[major]))


def model(resolved: Resolved) -> Check:
    """Whether each model of the workflow answers from here, to one token's worth of question."""
    if not resolved.workflow.asks_models:
        return Check("model", "ok", "the workflow asks none")
    try:
        said = [f"{name} in {latency_s:.1f} s" for name, latency_s in brief_answers(resolved)]
    except TryAgainLater as error:
        fix = "compute nodes of many sites need a proxy (https_proxy), or agent.where: shell"
        return Check("model", "fail", error.what, fix)
    return Check("model", "ok", f"answered: {', '.join(said)}")

"""What doctor tries on the machine that it runs on: Python, torch, compiler, sandbox, folders."""

from __future__ import annotations

import platform
import shutil
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from pike_hpc.cli.check import Check
from pike_hpc.cli.doctor_files import clock_check, room_check
from pike_hpc.cli.doctor_locks import claims_check, lock_check
from pike_hpc.cli.doctor_sharing import sharing_of, work_check
from pike_hpc.cli.image import check_image
from pike_hpc.cli.judging_torch import (
    TORCH,
    is_tested,
    judging_device,
    judging_toolchain,
    judging_torch,
    runs_image,
)
from pike_hpc.cli.lanes import measure_isolation
from pike_hpc.config import Resolved
from pike_hpc.evaluate.device import Device
from pike_hpc.machine import ask

_COMPILES_WITHIN_S = 60.0


def here(resolved: Resolved) -> Mapping[str, Callable[[], Check]]:
    """Checks by name, in the order in which they are tried."""
    site = resolved.site
    work, tmp = Path(site.paths.work), Path(site.paths.tmp)
    return {
        "python": python,
        "image": lambda: image(resolved),
        "torch": lambda: torch(resolved),
        "device": lambda: device(resolved),
        "compiler": lambda: compiler(resolved),
        "isolation": lambda: isolation(resolved),
        "work": lambda: work_check(work),
        "lock": lambda: lock_check(work),
        "claims": lambda: claims_check(work, sharing_of(work)),
        "clock": lambda: clock_check(work),
        "quota": lambda: room_check(work),
        "tmp": lambda: sockets(tmp),
        "unverified": lambda: unverified(site.sources),
    }


def python() -> Check:
    """Which one runs."""
    return Check("python", "ok", f"{platform.python_version()} at {sys.executable}")


def torch(resolved: Resolved) -> Check:
    """Whether what judges is there, and a version that is tested: in the image, or else here."""
    container = resolved.site.container
    in_image = runs_image(container.engine)
    version = judging_torch(container.engine, container.image)
    if version is None and in_image:
        fix = "make image SITE=…; this environment needs none"
        return Check("torch", "fail", f"not in image {container.image}: nothing can be judged", fix)
    if version is None:
        fix = "make setup (or pip install 'pike-hpc[local]'), or an engine that runs an image"
        detail = f"not installed, and engine {container.engine} runs no image: nothing is judged"
        return Check("torch", "warn", detail, fix)
    state = "ok" if is_tested(version) else "warn"
    where = f"{version} in image {container.image}" if in_image else version
    return Check("torch", state, where, f"tested are {TORCH[0]} up to, and without, {TORCH[1]}")


def device(resolved: Resolved) -> Check:
    """What would judge here."""
    container = resolved.site.container
    return device_check(judging_device("auto", container.engine, container.image))


def device_check(found: Device) -> Check:
    """What was found, as a check: a driver that hangs is no machine without a GPU."""
    if found.hangs:
        fix = "ask for another node, or restart this one: nothing runs on its GPU as it is"
        return Check("device", "fail", found.why, fix)
    return Check("device", "ok", found.why)


def compiler(resolved: Resolved) -> Check:
    """Whether C++ is compiled, with Python's headers at hand: in the image, or else here."""
    container = resolved.site.container
    in_image = runs_image(container.engine)
    found = judging_toolchain(container.engine, container.image)
    where = "in the image: " if in_image else ""
    if found.compiler is None or found.lacks:
        detail = f"{where}lacks {found.lacks}: rules with torch.compile are left out"
        fix = "install that, or load the site's compiler module"
        if in_image:
            fix = "make image SITE=… BUILD=1 has both; without them inline C++ fails"
        return Check("compiler", "warn", detail, fix)
    if in_image:
        return Check("compiler", "ok", f"{where}{found.compiler}, headers of Python")
    program, headers = found.compiler, sysconfig.get_paths()["include"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "one.cpp")
        source.write_text("#include <vector>\nint one() { return std::vector<int>{1}[0]; }\n")
        command = [program, "-c", str(source), "-o", str(source.with_suffix(".o"))]
        said = ask(command, _COMPILES_WITHIN_S)
    if said.status != 0:
        return Check("compiler", "fail", f"{program}: {said.complaint}", f"repair {program}")
    return Check("compiler", "ok", f"{program} compiles, headers in {headers}")


def image(resolved: Resolved) -> Check:
    """Whether the site's image is there, whole, and of a version that is tested."""
    digest = check_image(resolved)
    container = resolved.site.container
    if digest is None:
        return Check("image", "ok", f"engine {container.engine} runs none")
    return Check("image", "ok", f"{container.image}, {digest[:19]}…")


def isolation(resolved: Resolved) -> Check:
    """What a candidate would be kept from, by attacks; the workflow's minimum is the measure."""
    site, minimum = resolved.site, resolved.workflow.evaluate.min_isolation
    found = measure_isolation(site.container.engine, Path(site.paths.tmp), site.container.image)
    open_ways = sorted(name for name, stopped in found.probes.items() if not stopped)
    detail = f"{found.level} by {found.engine}"
    if open_ways:
        detail += f"; not stopped: {', '.join(open_ways)}"
    cut = {"network", "network_interfaces", "abstract_socket"}.isdisjoint(open_ways)
    if not cut:
        fix = "the network is not cut: ask the site why, or accept the level by evaluate."
        return Check("isolation", "warn", detail, fix + f"min_isolation: {found.level}")
    state = "ok" if found.level >= max(minimum, "L3") else "warn"
    fix = "apt-get install bubblewrap, and allow user namespaces (docs/isolation.md)"
    return Check("isolation", state, detail, fix)


def sockets(tmp: Path) -> Check:
    """Whether judge and runner could meet there."""
    with (
        tempfile.TemporaryDirectory(prefix="pike-", dir=tmp) as folder,
        socket.socket(socket.AF_UNIX) as bell,
    ):
        bell.bind(f"{folder}/socket")
    return Check("tmp", "ok", f"{tmp}: sockets work, {shutil.disk_usage(tmp).free / 1e9:.0f} GB")


def unverified(sources: Mapping[str, str]) -> Check:
    """Which values of the site file nobody has seen documented."""
    keys = sorted(key for key, source in sources.items() if "unverified" in source)
    if not keys:
        return Check("unverified", "ok", "every value of the site file has a source")
    return Check("unverified", "warn", ", ".join(keys), "check these against the site's pages")

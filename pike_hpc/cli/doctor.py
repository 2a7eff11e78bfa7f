"""`pike-hpc doctor`: try everything a run needs here, and say what to fix.

Each check does the thing itself where that is harmless: run a program under each engine, attack
from inside, lock and rename on the run's file system, compile a line of C++.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pike_hpc
from pike_hpc.cli.lanes import measure_isolation
from pike_hpc.config import Site, env, load_site, recognise_site
from pike_hpc.evaluate.device import detect, torch_version
from pike_hpc.launch import default_account
from pike_hpc.mailbox import FileMailbox
from pike_hpc.records import PikeError, encode

_TORCH_RANGE = ("2.11", "2.14")
_SLURM = ("sbatch", "squeue", "sacct", "scontrol")
_MIN_FREE_GB = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One thing tried."""

    name: str
    state: str
    """ok, warn, fail or unknown."""
    detail: str
    fix: str = ""


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--site", metavar="SITE", help="default: the one recognised, else local")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--collect", type=Path, metavar="FILE", help="a redacted report to send")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Try all; 1 where something fails, else 0."""
    environ = env.environ()
    sites = env.sites_dir(environ)
    name = options.site or recognise_site(environ, sites_dir=sites) or "local"
    site = load_site(name, sites_dir=sites, user_dir=env.user_config_dir(environ))
    checks = list(_checks(site))
    document = {"schema_version": 1, "site": site.name, "checks": [encode(c) for c in checks]}
    if options.collect is not None:
        options.collect.write_text(json.dumps(document | {"about": _about()}, indent=2) + "\n")
        print(f"report: {options.collect}", file=sys.stderr)
    if options.json:
        print(json.dumps(document, indent=2))
    else:
        for check in checks:
            print(f"{check.state:<8} {check.name:<12} {check.detail}")
            if check.fix and check.state != "ok":
                print(f"{'':<21} fix: {check.fix}")
    return 1 if any(c.state == "fail" for c in checks) else 0


def _checks(site: Site) -> Iterator[Check]:
    tries: dict[str, Callable[[Site], Check]] = {
        "python": _python,
        "torch": _torch,
        "device": _device,
        "compiler": _compiler,
        "isolation": _isolation,
        "work": _work,
        "tmp": _tmp,
        "slurm": _slurm,
        "account": _account,
        "unverified": _unverified,
    }
    for name, attempt in tries.items():
        try:
            yield attempt(site)
        except PikeError as error:
            yield Check(name, "fail", error.what, error.fix or "")
        except OSError as error:
            yield Check(name, "fail", str(error))


def _python(_: Site) -> Check:
    return Check("python", "ok", f"{platform.python_version()} at {sys.executable}")


def _torch(_: Site) -> Check:
    version = torch_version()
    if version is None:
        return Check(
            "torch",
            "warn",
            "not installed: nothing can be judged in this environment",
            "make setup (or pip install 'pike-hpc[local]'); a login node needs none",
        )
    low, high = (tuple(map(int, v.split("."))) for v in _TORCH_RANGE)
    inside = low <= tuple(map(int, version.split(".")[:2])) < high
    state = "ok" if inside else "warn"
    return Check("torch", state, version, f"tested are {_TORCH_RANGE[0]} up to {_TORCH_RANGE[1]}")


def _device(_: Site) -> Check:
    device = detect("auto", visible=env.environ().get("CUDA_VISIBLE_DEVICES"))
    return Check("device", "ok", device.why)


def _compiler(_: Site) -> Check:
    compiler = shutil.which("g++")
    headers = Path(sysconfig.get_paths()["include"], "Python.h")
    if compiler is None:
        fix = "apt-get install g++, or load the site's gcc module"
        return Check("compiler", "warn", "no g++: rules with torch.compile are left out", fix)
    if not headers.is_file():
        fix = "apt-get install python3-dev"
        return Check("compiler", "warn", f"no {headers}: the same rules are left out", fix)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "one.cpp")
        source.write_text("#include <vector>\nint one() { return std::vector<int>{1}[0]; }\n")
        command = [compiler, "-c", str(source), "-o", str(source.with_suffix(".o"))]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        return Check("compiler", "fail", done.stderr.strip().splitlines()[-1], "repair g++")
    return Check("compiler", "ok", f"{compiler} compiles, headers in {headers.parent}")


def _isolation(site: Site) -> Check:
    image = os.path.expandvars(site.container.image) if site.container.image else None
    found = measure_isolation(site.container.engine, Path(site.paths.tmp), image)
    open_ways = sorted(name for name, stopped in found.probes.items() if not stopped)
    detail = f"{found.level} by {found.engine}"
    if open_ways:
        detail += f"; not stopped: {', '.join(open_ways)}"
    state = "ok" if found.level in ("L3", "L4") else "warn"
    fix = "apt-get install bubblewrap, and allow user namespaces (docs/isolation.md)"
    return Check("isolation", state, detail, fix)


def _work(site: Site) -> Check:
    work = Path(os.path.expandvars(site.paths.work)).expanduser()
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pike-doctor-", dir=work) as folder:
        counts = FileMailbox(Path(folder)).counts()
    free_gb = shutil.disk_usage(work).free / 1e9
    detail = f"{work.resolve()}: locks, renames and commits work, {free_gb:.0f} GB free"
    if counts.new or free_gb < _MIN_FREE_GB:
        return Check("work", "warn", detail, f"keep at least {_MIN_FREE_GB:.0f} GB free")
    return Check("work", "ok", detail)


def _tmp(site: Site) -> Check:
    tmp = Path(os.path.expandvars(site.paths.tmp))
    with (
        tempfile.TemporaryDirectory(prefix="pike-", dir=tmp) as folder,
        socket.socket(socket.AF_UNIX) as bell,
    ):
        bell.bind(f"{folder}/socket")
    return Check("tmp", "ok", f"{tmp}: sockets work, {shutil.disk_usage(tmp).free / 1e9:.0f} GB")


def _slurm(site: Site) -> Check:
    if site.scheduler != "slurm":
        return Check("slurm", "ok", f"site {site.name} needs none")
    missing = [name for name in _SLURM if not shutil.which(name)]
    if missing:
        fix = f"run this on a login node of {site.name}"
        return Check("slurm", "fail", f"not on PATH: {', '.join(missing)}", fix)
    done = subprocess.run(["squeue", "--version"], capture_output=True, text=True, check=False)
    return Check("slurm", "ok" if done.returncode == 0 else "fail", done.stdout.strip())


def _account(site: Site) -> Check:
    if site.scheduler != "slurm" or site.account:
        return Check("account", "ok", site.account or "none needed")
    default = default_account()
    if default:
        return Check("account", "ok", f"{default}, Slurm's default for you")
    return Check(
        "account",
        "warn",
        "no account is given, and Slurm tells no default",
        "submit with --account A, or write it to your own site file; "
        "`sacctmgr -nP show assoc user=$USER format=account` lists yours",
    )


def _unverified(site: Site) -> Check:
    keys = sorted(key for key, source in site.sources.items() if source.startswith("unverified"))
    if not keys:
        return Check("unverified", "ok", "every value of the site file has a source")
    return Check("unverified", "warn", ", ".join(keys), "check these against the site's pages")


def _about() -> dict[str, str]:
    """Versions only: no names of users, hosts, accounts or keys."""
    return {
        "pike_hpc": pike_hpc.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch_version() or "",
    }

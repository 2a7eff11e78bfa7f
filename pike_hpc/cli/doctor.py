"""`pike-hpc doctor`: try everything a run needs here, and say what to fix.

Each check does the thing itself where that is harmless: run a program under each engine, attack
from inside, lock and rename on the run's file system, compile a line of C++. At a site with Slurm
it asks for a node of each kind and tries there what will be done there.
"""

from __future__ import annotations

import argparse
import json
import platform
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pike_hpc
from pike_hpc.cli.check import Check, tried
from pike_hpc.cli.doctor_here import here
from pike_hpc.cli.doctor_node import inside, model
from pike_hpc.cli.doctor_slurm import at_slurm, on_nodes, scrontab
from pike_hpc.cli.redacted import redaction
from pike_hpc.cli.seconds import whole_seconds
from pike_hpc.config import Resolved, env, recognise_site, resolve
from pike_hpc.evaluate.device import torch_version
from pike_hpc.records import encode

_ANY_WORK = """
schema_version: 1
name: doctor
tasks: {suite: level3-pike, ids: "4"}
search: {strategy: rules}
budget: {evaluations_per_task: 1}
evaluate: {devices: [auto], min_isolation: L1}
workers: {count: 1}
"""
"""Where no workflow is named: rules alone ask no model and want no isolation."""


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--site", metavar="SITE", help="default: the one recognised, else local")
    parser.add_argument("--workflow", type=Path, metavar="FILE", help="whose models are asked, too")
    parser.add_argument("--account", help="what the scheduler charges")
    parser.add_argument(
        "--set", action="append", default=[], metavar="A.B=V", help="override a key; repeatable"
    )
    parser.add_argument("--no-nodes", action="store_true", help="ask Slurm for no node")
    parser.add_argument(
        "--wait-s", type=whole_seconds, default=60, metavar="S", help="for a node; default 60"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--collect", type=Path, metavar="FILE", help="a redacted report to send")
    parser.add_argument("--inside", choices=["worker", "agent"], help=argparse.SUPPRESS)
    parser.add_argument("--note", type=Path, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Try all; 1 where something fails, else 0."""
    resolved = _resolved(options)
    if options.inside:
        checks = list(tried(inside(resolved, options.inside, options.note)))
        answer = {"host": socket.gethostname(), "now": time.time()}
        print(json.dumps(answer | {"checks": [encode(c) for c in checks]}))
        return 0
    checks = list(_checks(resolved, options))
    site = resolved.site.name
    document = {"schema_version": 1, "site": site, "checks": [encode(c) for c in checks]}
    if options.collect is not None:
        about = document | {"about": _about(), "checks": _redacted(resolved, checks)}
        options.collect.write_text(json.dumps(about, indent=2) + "\n")
        print(f"report: {options.collect}", file=sys.stderr)
    if options.json:
        print(json.dumps(document, indent=2))
    else:
        for check in checks:
            print(f"{check.state:<8} {check.name:<18} {check.detail}")
            if check.fix and check.state != "ok":
                print(f"{'':<27} fix: {check.fix}")
    return 1 if any(c.state == "fail" for c in checks) else 0


def _checks(resolved: Resolved, options: argparse.Namespace) -> Iterator[Check]:
    yield from tried(here(resolved))
    if resolved.site.scheduler != "slurm":
        yield from tried({"model": lambda: model(resolved)})
        return
    asked = list(at_slurm(resolved))
    yield from asked
    goes_on = not options.no_nodes and all(check.state == "ok" for check in asked)
    kinds = ["worker", "agent"] if resolved.site.agent.where == "array" else ["worker"]
    if resolved.site.agent.where == "scrontab":
        (lines,) = tried({"scrontab": lambda: scrontab(resolved)})
        yield lines
        kinds += ["agent"] if goes_on and lines.state == "ok" else []
    if "agent" not in kinds:
        yield from tried({"model": lambda: model(resolved)})
    if not goes_on:
        why, fix = (
            "Slurm has to take the jobs first",
            "mend what fails above, then run doctor again",
        )
        if options.no_nodes:
            why, fix = "not asked for", "run doctor again without --no-nodes"
        yield Check("nodes", "unknown", why, fix)
        return
    yield from on_nodes(resolved, kinds, _arguments(options, resolved), options.wait_s)


def any_work(site: str, account: str | None = None) -> Resolved:
    """The configuration of a site, whatever is run there. Raises UsageError."""
    return _resolved(argparse.Namespace(site=site, workflow=None, set=[], account=account))


def _resolved(options: argparse.Namespace) -> Resolved:
    environ = env.environ()
    sites = env.sites_dir(environ)
    with tempfile.TemporaryDirectory() as folder:
        workflow = options.workflow
        if workflow is None:
            workflow = Path(folder, "doctor.yaml")
            workflow.write_text(_ANY_WORK, "utf-8")
        return resolve(
            workflow,
            options.site or recognise_site(environ, sites_dir=sites) or "local",
            environ=environ,
            sites_dir=sites,
            sets=options.set,
            account=options.account,
            user_config_dir=env.user_config_dir(environ),
        )


def _arguments(options: argparse.Namespace, resolved: Resolved) -> list[str]:
    """The same options for the command inside a job."""
    arguments = ["--site", options.site or resolved.site.name]
    if options.workflow is not None:
        arguments += ["--workflow", str(options.workflow.absolute())]
    for given in options.set:
        arguments += ["--set", given]
    return arguments


def _redacted(resolved: Resolved, checks: Sequence[Check]) -> list[dict[str, str]]:
    """The checks without names of users, hosts, accounts and their folders."""
    names = redaction(
        resolved,
        env.environ(),
        hosts=[host for check in checks for host in check.hosts],
        accounts=[account for check in checks for account in check.accounts],
    )
    return [
        {"name": c.name, "state": c.state, "detail": names.of(c.detail), "fix": names.of(c.fix)}
        for c in checks
    ]


def _about() -> dict[str, str]:
    """Versions only: no names of users, hosts, accounts or keys."""
    return {
        "pike_hpc": pike_hpc.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch_version() or "",
    }

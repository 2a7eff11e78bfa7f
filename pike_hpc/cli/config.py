"""`pike-hpc config show`: the resolved configuration and where each value came from."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pike_hpc.config import Resolved, env, recognise_site, resolve
from pike_hpc.records import UsageError, encode


def add_layers(parser: argparse.ArgumentParser) -> None:
    """The options that choose and override a configuration; shared with `submit`."""
    parser.add_argument("--workflow", type=Path, required=True, metavar="FILE", help="WHAT to run")
    parser.add_argument("--site", metavar="SITE", help="WHERE to run; default local")
    parser.add_argument("--account", help="what the scheduler charges")
    parser.add_argument(
        "--set", action="append", default=[], metavar="A.B=V", help="override a key; repeatable"
    )


def resolve_from(options: argparse.Namespace) -> Resolved:
    """All layers, command line last. Raises UsageError."""
    environ = env.environ()
    sites_dir = env.sites_dir(environ)
    site = options.site
    if site is None:
        here = recognise_site(environ, sites_dir=sites_dir)
        if here is not None:
            raise UsageError(
                f"this is a login node of {here}, and no site was named",
                valid=f"{here}, or local for this node itself",
                fix=f"make submit SITE={here} WORKFLOW={options.workflow}",
            )
        site = "local"
    return resolve(
        options.workflow,
        site,
        environ=environ,
        sites_dir=sites_dir,
        sets=options.set,
        account=options.account,
        user_config_dir=env.user_config_dir(environ),
    )


def add_config(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("action", choices=["show"])
    add_layers(parser)
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the configuration, each value with its source."""
    resolved = resolve_from(options)
    if options.json:
        document = {"schema_version": 1, **encode(resolved), "digest": resolved.digest}
        print(json.dumps(document, indent=2))
        return 0
    for part in ("workflow", "site"):
        print(f"# {part}")
        for key, value in _flat(encode(getattr(resolved, part)), ""):
            source = resolved.sources.get(f"{part}.{key}", resolved.sources.get(key, ""))
            print(f"{key:<40} {value!s:<32} {source}".rstrip())
    return 0


def _flat(value: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [
            row for key, item in value.items() for row in _flat(item, f"{path}.{key}".strip("."))
        ]
    return [(path, value)]

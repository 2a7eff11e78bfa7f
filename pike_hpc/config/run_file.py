"""RUN/run.yaml: the resolved configuration that a run was made with, read by the same loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from pike_hpc.config.resolve import Resolved
from pike_hpc.config.schema import INT, read
from pike_hpc.config.site import Site
from pike_hpc.config.workflow import Workflow
from pike_hpc.config.yaml_source import ScalarNode, parse_mapping
from pike_hpc.records import UsageError, encode

RUN_VERSION = 1
"""Version of the run folder's layout; a run folder of N or N-1 is read."""

HEADER = """\
# What this run was made with. Written once by pike-hpc; to change it, start another run.
"""


def to_run_yaml(resolved: Resolved) -> str:
    """The text of run.yaml."""
    record = {
        "run_version": RUN_VERSION,
        "workflow": encode(resolved.workflow),
        "site": encode(resolved.site),
        "sources": dict(sorted(resolved.sources.items())),
    }
    body = yaml.dump(
        _quoted(record),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=100_000,
        default_flow_style=False,
    )
    return HEADER + body


def from_run_yaml(text: str, where: str) -> Resolved:
    """What `to_run_yaml` wrote. Raises UsageError; `where` names the file in it."""
    node = parse_mapping(text, where)
    version = node.items.get("run_version")
    if not isinstance(version, ScalarNode) or not INT.fullmatch(version.text):
        raise UsageError(
            "not a run's configuration: no run_version",
            where=where,
            fix="name the folder of a run, as `pike-hpc submit` printed it",
        )
    if int(version.text) not in (RUN_VERSION, max(1, RUN_VERSION - 1)):
        newer = int(version.text) > RUN_VERSION
        raise UsageError(
            f"run folder of version {version.text}",
            where=version.where,
            valid=f"{RUN_VERSION} (a version N reads its own runs and those of N-1)",
            fix="install the pike-hpc that made it: its wheel lies in the run's folder code/"
            + (", or a newer one" if newer else ""),
        )
    stored = read(_RunFile, node, {})
    return Resolved(workflow=stored.workflow, site=stored.site, sources=stored.sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunFile:
    run_version: int
    workflow: Workflow
    site: Site
    sources: dict[str, str]


class _Quoted(str):
    """Text that is written in quotes, so that no reader takes it for anything else."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """Plain keys, quoted text, no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(
    _Quoted,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style='"'),
)


def _quoted(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _quoted(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_quoted(v) for v in value]
    return _Quoted(value) if isinstance(value, str) else value

"""All layers together: defaults < site < user's site < workflow < environment < command line.

The result is complete: paths absolute, variables filled in, every value with the place it came
from. Nothing here looks at the environment by itself; the caller passes it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from pike_hpc.config.layers import (
    WORKFLOW_SECTIONS,
    fill_in,
    from_environment,
    from_sets,
    merge,
    section_of,
)
from pike_hpc.config.site import Site, read_site, site_node
from pike_hpc.config.versions import check_version
from pike_hpc.config.workflow import MOST_S, Workflow, read_workflow
from pike_hpc.config.yaml_source import MapNode, ScalarNode, read_file
from pike_hpc.records import UsageError, digest, encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A workflow at a site, with nothing left open."""

    workflow: Workflow
    site: Site
    sources: Mapping[str, str]
    """Dotted key to "file:line", "environment PIKE_…", "--set …", "--account" or "default".

    `name` and `schema_version` are the workflow's, `site.name` and `site.schema_version` the
    site's; no other key is in both.
    """

    @property
    def digest(self) -> str:
        """sha256 of the parts of the workflow that define the work; 8 digits name the run."""
        return digest(json.dumps(work_of(self.workflow), sort_keys=True, ensure_ascii=True))

    @property
    def run_name(self) -> str:
        """Name of the run's folder."""
        return f"{self.workflow.name}-{self.digest[:8]}"

    @property
    def run_dir(self) -> Path:
        """Where the run lies unless the user names another folder."""
        return self.site.runs_dir / self.run_name


def _inner_keys() -> tuple[str, ...]:
    """`section.key` of every section of a workflow and a site that is a record."""
    return tuple(
        f"{section}.{field.name}"
        for schema in (Workflow, Site)
        for section, kind in get_type_hints(schema).items()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind)
        for field in dataclasses.fields(kind)
    )


def resolve(
    workflow_path: Path,
    site_name: str,
    *,
    environ: Mapping[str, str],
    sites_dir: Path,
    sets: Sequence[str] = (),
    account: str | None = None,
    user_config_dir: Path | None = None,
) -> Resolved:
    """The whole configuration of a run. Raises UsageError for the first thing wrong."""
    workflow_node = read_file(workflow_path)
    check_version(workflow_node, "workflow")
    node = site_node(site_name, sites_dir=sites_dir, user_dir=user_config_dir)
    for layer in (*from_environment(environ), *from_sets(sets, _inner_keys())):
        if section_of(layer) in WORKFLOW_SECTIONS:
            workflow_node = merge(workflow_node, layer)
        else:
            node = merge(node, layer)
    if account is not None:
        given = ScalarNode(text=account, plain=False, where="--account")
        node = merge(node, MapNode(items={"account": given}, where="--account"))
    sources: dict[str, str] = {}
    site = _complete_site(read_site(node, sources), sources, environ)
    workflow = read_workflow(workflow_node, sources)
    _check_times(workflow, sources)
    workflow = _complete_workflow(workflow, workflow_path, sources, environ)
    return Resolved(workflow=workflow, site=site, sources=sources)


def work_of(workflow: Workflow) -> dict[str, Any]:
    """What defines the work: all but the file's name, the workers, and where keys come from."""
    whole: dict[str, Any] = encode(workflow)
    for key in ("name", "workers"):
        del whole[key]
    for model in whole["models"].values():
        del model["key_env"]
    return whole


def difference(old: Workflow, new: Workflow) -> tuple[str, ...]:
    """One line per key that makes the work of two workflows differ; empty if none does."""
    before, after = _flat(work_of(old), ""), _flat(work_of(new), "")
    lines = []
    for key in sorted(before.keys() | after.keys()):
        was, is_now = before.get(key, "absent"), after.get(key, "absent")
        if was != is_now:
            lines.append(f"{key}: {was} -> {is_now}")
    return tuple(lines)


def _complete_site(site: Site, sources: Mapping[str, str], environ: Mapping[str, str]) -> Site:
    def path(text: str, key: str) -> str:
        return str(Path(fill_in(text, environ, sources[key])).absolute())

    paths = dataclasses.replace(
        site.paths,
        work=path(site.paths.work, "paths.work"),
        keep=path(site.paths.keep, "paths.keep") if site.paths.keep else None,
        tmp=path(site.paths.tmp, "paths.tmp"),
    )
    image = site.container.image
    if image:
        image = fill_in(image, environ, sources["container.image"])
    keys = {k: path(v, f"key_files.{k}") for k, v in site.key_files.items()}
    return dataclasses.replace(
        site,
        paths=paths,
        container=dataclasses.replace(site.container, image=image),
        key_files=keys,
    )


def _check_times(workflow: Workflow, sources: Mapping[str, str]) -> None:
    """Of a new run only: one that an older version made must open, to be stopped at least."""
    given = workflow.evaluate.timeout_s
    if given > MOST_S:
        raise UsageError(
            f"evaluate.timeout_s: {given:g} is more than {MOST_S:.0f}, a week",
            where=sources["evaluate.timeout_s"],
        )


def _complete_workflow(
    workflow: Workflow, file: Path, sources: Mapping[str, str], environ: Mapping[str, str]
) -> Workflow:
    given = workflow.tasks.path
    if given is None:
        return workflow
    where = sources["tasks.path"]
    written_in_file = where.startswith(f"{file}:")
    base = file.absolute().parent if written_in_file else Path.cwd()
    path = str((base / fill_in(given, environ, where)).resolve())
    return dataclasses.replace(workflow, tasks=dataclasses.replace(workflow.tasks, path=path))


def _flat(value: Any, path: str) -> dict[str, str]:
    if isinstance(value, dict):
        flat: dict[str, str] = {}
        for key, item in value.items():
            flat |= _flat(item, f"{path}.{key}" if path else key)
        return flat
    if value is None:
        return {}
    return {path: json.dumps(value, ensure_ascii=False) if isinstance(value, list) else str(value)}

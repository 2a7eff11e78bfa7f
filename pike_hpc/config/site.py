"""A site file: WHERE to run. Scheduler, paths, container and the shape of jobs; no experiment.

Sites are found by name in the shipped folder `site_configs/`, completed or replaced by the
user's own file of the same name, or given as a path to a .yaml file. Accounts are never shipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from pike_hpc.config.layers import merge
from pike_hpc.config.schema import AtLeast, Scalar, read
from pike_hpc.config.versions import check_version
from pike_hpc.config.workflow import Name
from pike_hpc.config.yaml_source import MapNode, read_file
from pike_hpc.records import UsageError, did_you_mean

WITH_IMAGE = ("apptainer", "podman-hpc", "docker", "podman")
"""Engines that run an image."""

MAX_SHARDS = 64
"""As many as a mailbox takes (mailbox.shards): an idle worker lists them all."""

VARIANTS = "variants"
"""Key of a site file that a `Site` does not have: what is asked for is merged, the rest left."""

Positive = Annotated[int, AtLeast(1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentifySpec:
    """What tells a login node of this site from any other machine."""

    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathsSpec:
    """Folders of the site; $VARIABLES are filled in when a run is made."""

    work: str
    """Runs lie here, beside caches and images."""
    keep: str | None = None
    """Where a finished run is copied to."""
    tmp: str = "/tmp"  # noqa: S108  # node-local scratch is what is meant; a site names its own
    """Node-local: sockets and scratch. A socket's path may have 107 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """What separates candidates from the rest."""

    engine: Literal[
        "auto", "apptainer", "podman-hpc", "docker", "podman", "bubblewrap", "unshare", "none"
    ] = "auto"
    """auto: the strongest that really works on the worker's machine."""
    image: str | None = None
    digest: str | None = None
    build_in: Literal["here", "job"] = "here"
    """Where `make image` pulls or builds: some sites want no such work on a login node."""

    @property
    def runs_image(self) -> bool:
        """Whether the engine runs an image; `auto` takes none that does."""
        return self.engine in WITH_IMAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxSpec:
    """The queue between agents and workers, made with the run."""

    shards: Positive = 1
    """Folders that waiting requests are dealt to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJob:
    """The job that judges: what one of it asks the scheduler for."""

    gpus: Annotated[int, AtLeast(0)] = 0
    gpu_model: str | None = None
    cpus: Positive = 1
    walltime_minutes: Positive = 60
    qos: str | None = None
    constraint: str | None = None
    partition: str | None = None
    gres: str | None = None
    extra: Mapping[str, Scalar] = field(default_factory=dict)
    """Further sbatch options, such as {mem-per-cpu: 18400M}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentJob:
    """Where searches are driven from: array jobs, this shell, or scrontab."""

    where: Literal["array", "shell", "scrontab"] = "shell"
    cpus: Positive = 1
    walltime_minutes: Positive = 1440
    qos: str | None = None
    constraint: str | None = None
    partition: str | None = None
    tasks_per_job: Positive = 10
    at_once: Positive | None = None
    """How many jobs of one array may run at a time; all where it is None."""
    extra: Mapping[str, Scalar] = field(default_factory=dict)
    """Further sbatch options, such as {mem: 4G}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One place to run at."""

    schema_version: int
    name: Name
    scheduler: Literal["slurm", "local"]
    paths: PathsSpec
    identify: IdentifySpec = IdentifySpec()
    account: str | None = None
    account_gpu_suffix: str | None = None
    """Ends the accounts that GPU time is charged to; those for CPUs are without."""
    container: ContainerSpec = ContainerSpec()
    worker_job: WorkerJob = WorkerJob()
    agent: AgentJob = AgentJob()
    mailbox: MailboxSpec = MailboxSpec()
    setup: tuple[str, ...] = ()
    """Shell lines run at the start of every job."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Dotted key to where its value is documented, or 'unverified'."""
    key_files: Mapping[str, str] = field(default_factory=dict)
    """Name of a key's variable to a file of mode 0600; only in the user's own site file."""

    def account_for(self, kind: Literal["worker", "agent"]) -> str | None:
        """Whom a job is charged to, with or without the suffix, whichever was given."""
        if not (self.account and self.account_gpu_suffix):
            return self.account
        bare = self.account.removesuffix(self.account_gpu_suffix)
        return bare + self.account_gpu_suffix if kind == "worker" else bare

    @property
    def runs_dir(self) -> Path:
        """Folder that holds the run folders."""
        return Path(self.paths.work)


def shipped_sites_dir() -> Path:
    """The folder site_configs/ of a checkout or of the installed package.

    In a checkout the package links to the folder beside it; a wheel holds the files themselves.
    """
    return (Path(__file__).parent.parent / "site_configs").resolve()


def site_names(sites_dir: Path, user_dir: Path | None) -> tuple[str, ...]:
    """Every site that can be named, shipped or the user's own."""
    folders = [sites_dir] + ([user_dir / "sites"] if user_dir else [])
    names = {p.stem for folder in folders for p in folder.glob("*.yaml")}
    return tuple(sorted(names - {"template"}))


def site_variants(name: str, *, sites_dir: Path, user_dir: Path | None = None) -> tuple[str, ...]:
    """What may stand behind the site's name and a colon. Raises UsageError."""
    return tuple(_variants(_whole_node(name, sites_dir, user_dir)))


def load_site(name: str, *, sites_dir: Path, user_dir: Path | None = None) -> Site:
    """The site of that name, or in that .yaml file, $VARIABLES as written. Raises UsageError."""
    return read_site(site_node(name, sites_dir=sites_dir, user_dir=user_dir), {})


def site_node(name: str, *, sites_dir: Path, user_dir: Path | None) -> MapNode:
    """The merged nodes of a site: shipped file, the user's, then the variant that `name` asks for.

    `perlmutter:hbm80g` is the site with what it says under `variants.hbm80g`.
    """
    name, colon, variant = name.partition(":")
    node = _whole_node(name, sites_dir, user_dir)
    variants = _variants(node)
    if colon and variant not in variants:
        raise UsageError(
            f"site {name} has no variant {variant!r}",
            where=node.where,
            valid=", ".join(f"{name}:{known}" for known in variants) or "none",
            fix=did_you_mean(variant, tuple(variants)),
        )
    rest = {key: value for key, value in node.items.items() if key != VARIANTS}
    node = replace(node, items=rest)
    return merge(node, variants[variant]) if colon else node


def _variants(node: MapNode) -> dict[str, MapNode]:
    """Mappings of a site file that are merged upon it when they are asked for."""
    whole = node.items.get(VARIANTS)
    items = whole.items if isinstance(whole, MapNode) else {}
    found = {name: value for name, value in items.items() if isinstance(value, MapNode)}
    if whole is not None and (not isinstance(whole, MapNode) or len(found) < len(items)):
        where = node.key_where[VARIANTS]
        raise UsageError("variants: expected names with mappings", where=where)
    return found


def _whole_node(name: str, sites_dir: Path, user_dir: Path | None) -> MapNode:
    if name.endswith((".yaml", ".yml")):
        node = read_file(Path(name))
        check_version(node, "site")
        return node
    shipped = sites_dir / f"{name}.yaml"
    own = user_dir / "sites" / f"{name}.yaml" if user_dir else None
    known = site_names(sites_dir, user_dir)
    if name not in known:
        raise UsageError(
            f"no site {name!r}",
            where=str(sites_dir),
            valid=", ".join(known) or "none found; PIKE_SITES_DIR names their folder",
            fix=did_you_mean(name, known) or "copy site_configs/template.yaml",
        )
    nodes = []
    if shipped.is_file():
        nodes.append(read_file(shipped))
        check_version(nodes[0], "site")
        _refuse_secrets(nodes[0])
    if own is not None and own.is_file():
        nodes.append(read_file(own))
        check_version(nodes[-1], "site", required=len(nodes) == 1)
    node = nodes[0]
    for over in nodes[1:]:
        node = merge(node, over)
    return node


def read_site(node: MapNode, sources: dict[str, str]) -> Site:
    """The site in merged nodes; adds to `sources` where each key came from."""
    check_version(node, "site")
    own: dict[str, str] = {}
    site = read(Site, node, own)
    if site.container.runs_image and site.container.image is None:
        raise UsageError(
            f"container.image is required with engine {site.container.engine}",
            where=own["container.engine"],
        )
    if site.container.engine == "auto" and site.container.image is not None:
        raise UsageError(
            f"container.image {site.container.image} would not be used: engine auto runs none",
            where=own["container.image"],
            valid=f"container.engine: {', '.join(WITH_IMAGE)}",
            fix="name the engine that has it, or leave the image out (`image: null`)",
        )
    if site.scheduler == "local" and site.agent.where != "shell":
        raise UsageError(
            f"agent.where: {site.agent.where} needs scheduler slurm", where=own["agent.where"]
        )
    if site.mailbox.shards > MAX_SHARDS:
        raise UsageError(
            f"mailbox.shards: {site.mailbox.shards}",
            where=own["mailbox.shards"],
            valid=f"1 to {MAX_SHARDS}",
        )
    for key in site.sources:
        if not any(path == key or path.startswith(f"{key}.") for path in own):
            raise UsageError(
                f"sources: no key {key!r} in a site",
                where=own[f"sources.{key}"],
                fix=did_you_mean(key, own),
            )
    for key, place in own.items():  # the workflow has these two as well
        sources[f"site.{key}" if key in ("schema_version", "name") else key] = place
    return site


def recognise_site(environ: Mapping[str, str], *, sites_dir: Path) -> str | None:
    """Name of the shipped site whose login node this is; None elsewhere."""
    for name in site_names(sites_dir, None):
        wanted = load_site(name, sites_dir=sites_dir).identify.env
        if wanted and all(environ.get(k) == v for k, v in wanted.items()):
            return name
    return None


def _refuse_secrets(node: MapNode) -> None:
    if "key_files" in node.items:
        raise UsageError(
            "key_files belongs to your own site file, not to a shipped one",
            where=node.key_where["key_files"],
            fix="move it to $XDG_CONFIG_HOME/pike-hpc/sites/<site>.yaml",
        )

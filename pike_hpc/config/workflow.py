"""A workflow file: WHAT to run. Counts, budgets and models; no cluster, no path of a site.

The dataclasses are the schema: a field without a default is a required key. `read_workflow`
adds the rules that span several keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pike_hpc.config.schema import DEFAULT, AtLeast, Keys, NotHere, Scalar, Shaped, read
from pike_hpc.config.versions import check_version
from pike_hpc.config.yaml_source import MapNode, read_file
from pike_hpc.records import Tier, UsageError, Variant

Level = Literal["L0", "L1", "L2", "L3", "L4"]
"""Isolation levels, derived from attacks tried; L3 is demanded for what a model wrote."""

Name = Annotated[
    str,
    Shaped(
        r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}",
        "a name: at most 64 letters, digits, '.', '_' and '-', it becomes part of a folder's name",
    ),
]
Count = Annotated[int, AtLeast(0)]
MOST_S = 7 * 24 * 3600.0
"""A week: longer than any job runs. The kernel's clocks take no numbers like 1e300."""

Amount = Annotated[float, AtLeast(0)]

ROLES = ("optimise", "brainstorm", "fix")

PAID_HOSTS = ("api.openai.com", "generativelanguage.googleapis.com", "openrouter.ai")
"""Hosts known to charge; a base_url elsewhere is taken for a server of one's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksSpec:
    """Which tasks: a shipped suite, or a folder of files in KernelBench's format."""

    suite: str | None = None
    path: str | None = None
    ids: str | None = None
    """A range such as "1-10,17,20"; none means all."""
    variant: Variant = Variant.ADMITTED
    shape_overrides: Mapping[str, Mapping[str, Annotated[int, AtLeast(1)]]] = field(
        default_factory=dict
    )
    """Task id to module-level integers of its source that are replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpec:
    """How candidates are looked for."""

    strategy: Annotated[
        Literal["rules", "pike_b", "default"],
        NotHere({"pike_o": "use pike_b, or default: rules first, then pike_b if a model is given"}),
    ] = "default"
    seed: Count = 0
    options: Mapping[str, Scalar] = field(default_factory=dict)
    """The strategy's own settings; it checks them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSpec:
    """What may be spent; 0 means no limit."""

    queries_per_task: Count = 300
    evaluations_per_task: Count = 400
    max_usd: Amount = 0.0
    max_gpu_hours: Amount = 0.0
    wall_minutes: Amount = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model to ask. The key itself is never here, only the name of its variable."""

    provider: Annotated[
        Literal["openai", "scripted", "cassette"],
        NotHere(
            {
                "google": "use provider openai with base_url "
                "https://generativelanguage.googleapis.com/v1beta/openai/"
            }
        ),
    ]
    model: str
    base_url: str | None = None
    key_env: str | None = "OPENAI_API_KEY"
    """Environment variable that holds the key; null for a server that asks for none."""
    temperature: Amount = 0.8
    max_output_tokens: Annotated[int, AtLeast(1)] = 32_000

    @property
    def is_paid(self) -> bool:
        """Whether its provider charges money."""
        host = urlsplit(self.base_url).hostname if self.base_url else PAID_HOSTS[0]
        return self.provider == "openai" and host in PAID_HOSTS


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateSpec:
    """How candidates are judged."""

    devices: Annotated[
        tuple[
            Annotated[
                str, Shaped(r"[a-z0-9][a-z0-9.-]*", "a device: auto, cpu, cuda, a GPU model")
            ],
            ...,
        ],
        AtLeast(1),
    ] = ("auto",)
    tiers: Annotated[tuple[Tier, ...], AtLeast(1)] = tuple(Tier)
    min_isolation: Level = "L3"
    """Where not written: L3 if a model is asked, L1 if only rules propose."""
    timeout_s: Annotated[float, AtLeast(1)] = 900.0
    """At most MOST_S in a new run; older versions did not look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersSpec:
    """How many workers, how long one without work stays, and what all may use."""

    count: Annotated[int, AtLeast(1)] = 1
    max_idle_s: Annotated[float, AtLeast(1)] = 600.0
    max_node_hours: Annotated[float, AtLeast(0)] | None = None
    """Of worker jobs from one submit on. None: what `count` jobs of the site's walltime use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    """One experiment."""

    schema_version: int
    name: Name
    tasks: TasksSpec
    search: SearchSpec = SearchSpec()
    budget: BudgetSpec = BudgetSpec()
    models: Annotated[Mapping[str, ModelSpec], Keys(ROLES)] = field(default_factory=dict)
    """By role; a role without a model of its own is played by optimise's."""
    evaluate: EvaluateSpec = EvaluateSpec()
    workers: WorkersSpec = WorkersSpec()

    @property
    def asks_models(self) -> bool:
        """Whether the search will ask a model at all."""
        return self.search.strategy != "rules" and "optimise" in self.models

    def model_for(self, role: str) -> ModelSpec | None:
        """The model that plays `role`; None where no model is configured."""
        return self.models.get(role) or self.models.get("optimise")


def load_workflow(path: Path) -> Workflow:
    """The workflow in a file, nothing overriding it. Raises UsageError naming file and line."""
    return read_workflow(read_file(path), {})


def read_workflow(node: MapNode, sources: dict[str, str]) -> Workflow:
    """The workflow in merged nodes; adds to `sources` where each key came from."""
    check_version(node, "workflow")
    workflow = read(Workflow, node, sources)
    if sources["evaluate.min_isolation"] == DEFAULT and not workflow.asks_models:
        workflow = replace(workflow, evaluate=replace(workflow.evaluate, min_isolation="L1"))
    _check(workflow, node, sources)
    return workflow


def _check(workflow: Workflow, node: MapNode, sources: Mapping[str, str]) -> None:
    def place(key: str, section: str) -> str:
        written = sources.get(key, DEFAULT)
        whole = node.items.get(section, node)
        return whole.where if written == DEFAULT else written

    tasks, models = workflow.tasks, workflow.models
    if (tasks.suite is None) == (tasks.path is None):
        raise UsageError(
            "tasks: exactly one of suite and path is needed",
            where=place("tasks.path", "tasks"),
            fix="write `suite: level3-pike`, or `path: DIR` and no suite",
        )
    if workflow.search.strategy == "pike_b" and "optimise" not in models:
        raise UsageError(
            "strategy pike_b asks a model, and models.optimise is not given",
            where=place("search.strategy", "search"),
            fix="add models.optimise, or use strategy rules, which needs no model",
        )
    if models and "optimise" not in models:
        raise UsageError("models.optimise is missing", where=place("models.optimise", "models"))
    tiers = workflow.evaluate.tiers
    if len(set(tiers)) != len(tiers):
        raise UsageError(
            "evaluate.tiers: a tier stands twice", where=place("evaluate.tiers", "evaluate")
        )
    spent = ("budget.max_usd", "budget")
    for role, model in models.items():
        asked = (f"models.{role}.provider", "models")
        _check_url(model, role, place(f"models.{role}.base_url", "models"))
        if workflow.asks_models and model.is_paid and workflow.budget.max_usd <= 0:
            raise UsageError(
                f"budget.max_usd is required: models.{role} is paid for",
                where=place(*spent) if "budget" in node.items else place(*asked),
                valid="an amount above 0, in US dollars",
                fix="add `max_usd: 5` to budget, or give the base_url of a server of your own",
            )


def _check_url(model: ModelSpec, role: str, where: str) -> None:
    if model.base_url is None:
        return
    try:
        parts = urlsplit(model.base_url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known or parts.username or parts.password:
        raise UsageError(
            f"models.{role}.base_url: not the address of a server",
            where=where,
            valid="http://HOST:PORT/v1 or https://HOST/v1, without a user or password",
        )

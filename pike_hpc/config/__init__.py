"""Strict YAML in, frozen objects out. `config.env` is the only reader of the environment."""

from pike_hpc.config.resolve import Resolved, difference, resolve
from pike_hpc.config.run_file import RUN_VERSION, from_run_yaml, to_run_yaml
from pike_hpc.config.site import (
    AgentJob,
    ContainerSpec,
    PathsSpec,
    Site,
    WorkerJob,
    load_site,
    recognise_site,
    site_names,
    site_variants,
)
from pike_hpc.config.workflow import (
    BudgetSpec,
    EvaluateSpec,
    ModelSpec,
    SearchSpec,
    TasksSpec,
    WorkersSpec,
    Workflow,
    load_workflow,
)

__all__ = [
    "RUN_VERSION",
    "AgentJob",
    "BudgetSpec",
    "ContainerSpec",
    "EvaluateSpec",
    "ModelSpec",
    "PathsSpec",
    "Resolved",
    "SearchSpec",
    "Site",
    "TasksSpec",
    "WorkerJob",
    "WorkersSpec",
    "Workflow",
    "difference",
    "from_run_yaml",
    "load_site",
    "load_workflow",
    "recognise_site",
    "resolve",
    "site_names",
    "site_variants",
    "to_run_yaml",
]

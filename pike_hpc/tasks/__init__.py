"""Tasks: `spec` finds them (no torch), `load` makes them models and inputs (torch)."""

from pike_hpc.tasks.spec import (
    Chosen,
    Suite,
    apply_overrides,
    choose,
    effective_source,
    find_task,
    load_suite,
    module_integers,
    parse_range,
    refuse_twins,
    select,
    suites,
)

__all__ = [
    "Chosen",
    "Suite",
    "apply_overrides",
    "choose",
    "effective_source",
    "find_task",
    "load_suite",
    "module_integers",
    "parse_range",
    "refuse_twins",
    "select",
    "suites",
]

"""What an admission depends on, beside the task: a digest that makes a measured table stale.

No torch. A task's own part is its digest (`Task.digest`): source, variant, overrides,
calibration.
"""

from __future__ import annotations

from pathlib import Path

from pike_hpc.records import digest

PACKAGE = Path(__file__).resolve().parents[1]

MODULES = (
    "evaluate/admission.py",
    "evaluate/correctness.py",
    "evaluate/judge_admission.py",
    "evaluate/judge_truth.py",
    "evaluate/judge_weights.py",
    "evaluate/judge_widen.py",
    "evaluate/layout.py",
    "tasks/load.py",
)
"""Files of the package whose change may change what `tasks check` finds."""


def code_digest(package: Path = PACKAGE, modules: tuple[str, ...] = MODULES) -> str:
    """sha256 over names and bytes of the modules; one that is absent counts as such."""
    parts: list[str | bytes] = []
    for name in modules:
        path = package / name
        parts += [name, path.read_bytes() if path.is_file() else "absent"]
    return digest(*parts)

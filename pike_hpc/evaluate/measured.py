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
    "evaluate/buffers.py",
    "evaluate/correctness.py",
    "evaluate/judge_admission.py",
    "evaluate/judge_arithmetic.py",
    "evaluate/judge_calm.py",
    "evaluate/judge_constructor.py",
    "evaluate/judge_faint.py",
    "evaluate/judge_frame.py",
    "evaluate/judge_memory.py",
    "evaluate/judge_moves.py",
    "evaluate/judge_mutants.py",
    "evaluate/judge_mutants_addends.py",
    "evaluate/judge_mutants_parts.py",
    "evaluate/judge_operations.py",
    "evaluate/judge_other_weights.py",
    "evaluate/judge_range.py",
    "evaluate/judge_scores.py",
    "evaluate/judge_secrets.py",
    "evaluate/judge_sharpen.py",
    "evaluate/judge_signal.py",
    "evaluate/judge_size.py",
    "evaluate/judge_structure.py",
    "evaluate/judge_truth.py",
    "evaluate/judge_turned.py",
    "evaluate/judge_unread.py",
    "evaluate/judge_variety.py",
    "evaluate/judge_weights.py",
    "evaluate/judge_widen.py",
    "evaluate/layout.py",
    "evaluate/pieces.py",
    "evaluate/runner/state.py",
    "evaluate/runner/trees.py",
    "machine/memory.py",
    "tasks/load.py",
    "tasks/source.py",
)
"""Files of the package whose change may change what `tasks check` finds."""


def code_digest(package: Path = PACKAGE, modules: tuple[str, ...] = MODULES) -> str:
    """sha256 over names and bytes of the modules. Raises OSError where one is absent."""
    parts: list[str | bytes] = []
    for name in modules:
        parts += [name, (package / name).read_bytes()]
    return digest(*parts)

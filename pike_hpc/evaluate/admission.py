"""What the judge found out about a task before it judged anyone on it. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Whether a task can tell right from wrong, and how finely."""

    task_digest: str
    admitted: bool
    reason: str = ""
    """Why not, for a person."""
    signal: float = 0.0
    """RMS change of the output with the input over its RMS, the smallest over outputs."""
    noise: float = 0.0
    """Error of the float32 reference over the signal, the largest over outputs."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Tier to the error at which it ends; a tier that a mutant would pass is absent."""
    mutants: Mapping[str, float] = field(default_factory=dict)
    """Mutant to its error: all must be beyond every limit."""
    reference_precision: str = "float64"

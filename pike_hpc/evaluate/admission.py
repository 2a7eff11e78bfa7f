"""What the judge found out about a task before it judged anyone on it. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Whether a task can tell right from wrong, and how finely."""

    task_digest: str
    admitted: bool | None
    """None where it was not tried: too large for this device."""
    reason: str = ""
    """Why not, for a person."""
    signal: float = 0.0
    """RMS change of the output with the input over its RMS, the smallest over outputs."""
    noise: float = 0.0
    """Error over the signal of the reference as it ships, the largest over outputs."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Tier to the error at which it ends; a tier that a mutant would pass is absent."""
    mutants: Mapping[str, float] = field(default_factory=dict)
    """Mutant to its error, of several layers the mildest: all must be beyond every limit."""
    not_applicable: tuple[str, ...] = ()
    """Mutants that this task cannot have, such as zeroed weights where there are none."""
    inadmissible: Mapping[str, str] = field(default_factory=dict)
    """Tier to why no candidate can earn it here."""
    reference_precision: str = "float64"
    """What answers are held against; anything else is the reference's own arithmetic."""
    native_precision: str = "float32"
    """Of the task's weights and outputs as it ships."""
    parameters: int = 0
    calibrated: int = 0
    """BatchNorm layers whose statistics were measured, without which the output is constant."""
    resets_state: bool = False
    """Whether what forward leaves behind is put back before each call."""
    memory_gib: float = 0.0
    """GPU memory that the reference took at most while it was admitted."""
    seconds: float = 0.0
    """What admission took here."""

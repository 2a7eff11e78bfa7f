"""Profile: where the time of one call goes, as the judged program's own process tells it.

A hint for the search, never a part of a verdict: the process that is profiled writes it and could
write anything.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ProfileSource(enum.StrEnum):
    """What was counted."""

    KERNELS = "kernels"
    """Kernels and copies on a GPU, traced by CUPTI."""
    EVENTS = "events"
    """Nothing: CUPTI is not to be had here, CUDA events gave the time on the device."""
    OPERATIONS = "operations"
    """PyTorch's operations on a CPU, those within others included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelShare:
    """One kernel (on a CPU: operation) of a profile."""

    name: str
    """Shortened. The program's word."""
    share: float
    """Part of the time of all kernels, 0 to 1; on a CPU of the call's."""
    launches: float
    """In one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What one call does on its device."""

    source: ProfileSource
    launches: float = 0.0
    """Kernels, or operations, in one call."""
    copies: float = 0.0
    """Copies and fills by the device's own means in one call."""
    copies_ms: float = 0.0
    graph_replays: float = 0.0
    """CUDA graphs launched in one call."""
    streams: int = 0
    """That its work on a GPU was on; 0 where nobody saw."""
    kernels: tuple[KernelShare, ...] = ()
    """The longest first, few."""

    def lines(
        self, *, candidate_ms: float, device_ms: float | None, roofline_ms: float | None
    ) -> tuple[str, ...]:
        """The profile for a person or a prompt, one to six lines.

        Args:
            candidate_ms: a call on the judge's clock.
            device_ms: of these on the device, where known.
            roofline_ms: a call at the device's peaks, where known.
        """
        return (self._head(candidate_ms, device_ms, roofline_ms), *map(_share, self.kernels))

    def _head(self, candidate_ms: float, device_ms: float | None, roofline_ms: float | None) -> str:
        whole = f"{candidate_ms:.3g} ms a call"
        if device_ms is not None:
            idle = max(0.0, 1.0 - device_ms / candidate_ms) if candidate_ms > 0 else 0.0
            whole = f"device {device_ms:.3g} ms of {whole} (idle for {100 * idle:.0f} %)"
        parts = [whole]
        if roofline_ms:
            parts.append(
                f"roofline {roofline_ms:.3g} ms (now {candidate_ms / roofline_ms:.3g} times that)"
            )
        if self.source is ProfileSource.OPERATIONS:
            parts.append(f"{self.launches:.3g} operations")
        elif self.source is ProfileSource.KERNELS:
            parts.append(f"{self.launches:.4g} kernels")
        if self.streams > 1:
            parts.append(f"on {self.streams} streams")
        if self.copies:
            parts.append(f"{self.copies:.3g} copies or fills ({self.copies_ms:.3g} ms)")
        if self.graph_replays:
            parts.append(f"{self.graph_replays:.3g} CUDA graph replays")
        if self.source is ProfileSource.EVENTS:
            parts.append("no kernel could be traced")
        return ", ".join(parts)


def _share(kernel: KernelShare) -> str:
    return f"{100 * kernel.share:.0f} % {kernel.name}, {kernel.launches:.3g} a call"

"""The compositions of rules that seed every search, per device, best first."""

from __future__ import annotations

_CPU = (
    ("identity",),
    ("compile_default",),
)


def portfolio(device_kind: str) -> tuple[tuple[str, ...], ...]:
    """Compositions of rule names."""
    return _CPU

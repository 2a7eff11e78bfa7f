"""The compositions of rules that seed every search, per kind of device, best first.

The order is fixed, so that a run that was killed repeats exactly. It comes from measurements:
on CPU of tasks 4, 8, 13, 17, 20 at batch 2, on GPU of the whole suite's stock settings. A
composition of which one rule declines is skipped whole, so each task sees about half of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from pike_hpc.proposers.rules.rewrite import RULES

_CPU = (
    "identity",
    "fold_batch_norm+compile_default",
    "pool_first+compile_default",
    "packed_linear+channels_last+compile_default",
    "sdpa+compile_default",
    "compile_default",
    "channels_last+compile_default",
    "fold_batch_norm+channels_last+half_body+compile_default",
    "pool_first+channels_last+half_body+compile_default",
    "packed_linear+channels_last+half_body+compile_default",
    "sdpa+half_body+compile_default",
    "channels_last+half_body+compile_default",
    "half_body+compile_default",
    # Without a compiler these are left.
    "fold_batch_norm+channels_last",
    "pool_first+channels_last",
    "sdpa",
    "channels_last",
    "fold_batch_norm+channels_last+half_body",
)
"""On a CPU what reads memory least wins: folded and compiled, 16 bits where they are allowed."""

_GPU = (
    "identity",
    "fold_batch_norm+channels_last+half_body+compile_reduce_overhead",
    "pool_first+channels_last+half_body+compile_reduce_overhead",
    "packed_linear+channels_last+half_body+compile_reduce_overhead",
    "sdpa+half_body+compile_reduce_overhead",
    "channels_last+half_body+compile_reduce_overhead",
    "half_body+compile_reduce_overhead",
    "fold_batch_norm+compile_reduce_overhead",
    "pool_first+compile_reduce_overhead",
    "packed_linear+compile_reduce_overhead",
    "sdpa+compile_reduce_overhead",
    "compile_reduce_overhead",
    "compile_max_autotune",
    "compile_default",
    # Without a compiler these are left.
    "fold_batch_norm+channels_last+half_body",
    "sdpa+half_body",
    "channels_last+half_body",
    "half_body",
)
"""On a GPU launches and precision dominate: CUDA graphs, then 16 bits on tensor cores."""


def portfolio(device_kind: str) -> tuple[tuple[str, ...], ...]:
    """Compositions of rule names for a GPU's model, or for `cpu`; identity is the control."""
    texts = _CPU if device_kind == "cpu" else _GPU
    return tuple(tuple(text.split("+")) for text in texts)


def is_stock(rules: Sequence[str]) -> bool:
    """Whether a composition is a setting of torch that any user could flip, not a find."""
    return all(RULES[name].stock for name in rules)

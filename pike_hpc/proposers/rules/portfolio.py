"""The compositions of rules that seed every search, per kind of device, best first.

The order is fixed, so that a run that was killed repeats exactly. It was measured: on a CPU on
tasks 4, 8, 13, 17, 20 and 43 at batch 2, on an H200 on the shipped tasks as they are. A
composition of which one rule declines is skipped whole, so each task sees about half of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from pike_hpc.proposers.rules.rewrite import RULES

_CPU = (
    "identity",
    "compile_default",
    "fold_batch_norm+compile_default",
    "pool_first+compile_default",
    "packed_linear+channels_last+compile_default",
    "sdpa+compile_default",
    "fold_batch_norm+channels_last+half_body+compile_default",
    "pool_first+channels_last+half_body+compile_default",
    "packed_linear+channels_last+half_body+compile_default",
    "half_body+compile_default",
    "channels_last+compile_default",
    "sdpa+half_body+compile_default",
    # Without a compiler these are left.
    "fold_batch_norm+channels_last",
    "pool_first+channels_last",
    "channels_last",
    "sdpa",
    "fold_batch_norm+channels_last+half_body",
)
"""On a CPU what touches memory least wins: fused by the compiler, 16 bits where allowed."""

_GPU = (
    "identity",
    "sdpa+half_body+compile_default",
    "fold_batch_norm+channels_last+half_body+compile_default",
    "fold_batch_norm+channels_last+half_body+compile_reduce_overhead",
    "pool_first+channels_last+half_body+compile_default",
    "half_body+compile_default",
    "channels_last+half_body+compile_reduce_overhead",
    "compile_default",
    "compile_reduce_overhead",
    "fold_batch_norm+compile_default",
    "pool_first+compile_default",
    "packed_linear+compile_default",
    "sdpa+compile_default",
    # Without a compiler these are left.
    "sdpa+half_body",
    "fold_batch_norm+channels_last+half_body",
    "half_body",
    # The denominator of who must have full fp32.
    "strict_fp32",
    # Its first call takes minutes.
    "compile_max_autotune",
)
"""On a GPU precision and fusion win where outputs are large, replayed graphs where they are small:
a replay's output must be copied."""


def portfolio(device_kind: str) -> tuple[tuple[str, ...], ...]:
    """Compositions of rule names for a GPU's model, or for `cpu`; identity is the control."""
    texts = _CPU if device_kind == "cpu" else _GPU
    return tuple(tuple(text.split("+")) for text in texts)


def is_stock(rules: Sequence[str]) -> bool:
    """Whether a composition is a setting of torch that any user could flip, not a find."""
    return all(RULES[name].stock for name in rules)


def is_stock_operator(operator: str) -> bool:
    """The same of a proposal's operator, such as rule:channels_last+compile_default."""
    kind, _, names = operator.partition(":")
    rules = names.split("+")
    return kind == "rule" and all(name in RULES for name in rules) and is_stock(rules)

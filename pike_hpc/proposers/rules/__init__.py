"""Rules: source-to-source rewrites that need no model and no torch to propose."""

from pike_hpc.proposers.rules.draft import Rule
from pike_hpc.proposers.rules.portfolio import is_stock, is_stock_operator, portfolio
from pike_hpc.proposers.rules.rewrite import RULES, DeclinedByRule, Rewritten, rewrite
from pike_hpc.proposers.rules.toolchain import Toolchain, probe_toolchain

__all__ = [
    "RULES",
    "DeclinedByRule",
    "Rewritten",
    "Rule",
    "Toolchain",
    "is_stock",
    "is_stock_operator",
    "portfolio",
    "probe_toolchain",
    "rewrite",
]

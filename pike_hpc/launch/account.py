"""Which account pays for a run: the one that was given, else Slurm's default for this user."""

from __future__ import annotations

import dataclasses
import os
import pwd

from pike_hpc.config import Resolved
from pike_hpc.launch.refusal import ACCOUNTS, GIVE_ACCOUNT
from pike_hpc.records import TryAgainLater, UsageError
from pike_hpc.slurm import accounts_enforced, call

SLURMS_DEFAULT = "Slurm's default for you"
"""The source of an account that nobody gave."""

_PATIENCE_S = 60


def with_account(resolved: Resolved) -> Resolved:
    """The configuration of a site with Slurm, its account the default where none is given.

    Left to Slurm, the default would pay for all jobs alike, whatever account_gpu_suffix says, and
    run.yaml would not tell it. As it was where Slurm names no default.
    """
    default = None if resolved.site.account else _default()
    if not default:
        return resolved
    return dataclasses.replace(
        resolved,
        site=dataclasses.replace(resolved.site, account=default),
        sources={**resolved.sources, "account": SLURMS_DEFAULT},
    )


def account_line(resolved: Resolved) -> str:
    """Which account pays, in one line.

    Raises UsageError where Slurm wants one with every job and there is none, TryAgainLater where
    the one that GPU time is charged to depends on a default that cannot be asked for.
    """
    site = resolved.site
    if site.account:
        workers, agents = site.account_for("worker"), site.account_for("agent")
        both = f"{workers} for workers, {agents} for agents"
        payer = both if workers != agents else workers
        return f"account: {payer} ({resolved.sources.get('account', 'default')})"
    default = _default()
    if default:  # a run that was made without one: its jobs name none, and Slurm takes this
        return f"account: {default} ({SLURMS_DEFAULT})"
    if not accounts_enforced():
        return f"account: none, and Slurm asks for none; `{ACCOUNTS}` lists yours"
    if default is not None:
        raise UsageError(
            "Slurm wants an account for every job and has no default for you",
            where="account is not set",
            valid=f"what is listed by `{ACCOUNTS}`",
            fix=GIVE_ACCOUNT,
        )
    if site.account_gpu_suffix:
        raise TryAgainLater(
            "no account is given, and Slurm does not tell your default now",
            where=f"account_gpu_suffix {site.account_gpu_suffix} has to be added to it for workers",
            fix=f"run the same command later, or {GIVE_ACCOUNT}",
        )
    return f"account: {SLURMS_DEFAULT}; which one that is cannot be asked now"


def _default() -> str | None:
    """Slurm's default account of this user, "" where there is none, None where nobody says."""
    user = pwd.getpwuid(os.geteuid()).pw_name
    show = ("sacctmgr", "-nP", "show", "user", user, "format=defaultaccount")
    done = call(*show, timeout_s=_PATIENCE_S)
    return done.stdout.strip().partition("\n")[0] if done.returncode == 0 else None

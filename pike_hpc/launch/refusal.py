"""What Slurm's sentence about a job means in a site file: which key, and what lists its values.

Pure. The sentences are those of Slurm 22.05 (its table of errors); one that is not known here is
shown as it is, beside everything that the job asked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pike_hpc.config import Resolved
from pike_hpc.records import TryAgainLater, UsageError, encode

ACCOUNTS = "sacctmgr -nP show assoc user=$USER format=account,partition,qos"
GIVE_ACCOUNT = "submit with --account A (make: ACCOUNT=A), or write account: A in your site file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A job that Slurm would not take, or would take and never start."""

    kind: str
    """worker or agent."""
    said: str
    """Slurm's own sentence."""

    @property
    def section(self) -> str:
        """The part of the site file that shapes this job."""
        return "worker_job" if self.kind == "worker" else "agent"


@dataclass(frozen=True, slots=True)
class _Meaning:
    words: str
    """Found in the sentence, in small letters."""
    keys: tuple[str, ...]
    """Of the job's section, but for `account`; those that are set are named."""
    lists: tuple[str, ...]
    """Commands that list what is valid."""


_LIMITS = ("sacctmgr -nP show qos format=name,maxwall,maxtrespu", "sinfo -o '%P %l'")
_NODES = "sinfo -o '%P %D %c %m %G %f'"
_SHAPE = ("partition", "constraint", "gres", "gpus", "cpus")

_MEANINGS = (
    _Meaning("invalid account", ("account",), (ACCOUNTS,)),
    _Meaning("invalid qos", ("qos",), (ACCOUNTS,)),
    _Meaning("invalid partition", ("partition",), ("sinfo -o '%P %l %D'",)),
    _Meaning("not permitted to use this partition", ("partition",), (ACCOUNTS,)),
    _Meaning("invalid feature", ("constraint",), ("sinfo -o '%P %f'",)),
    _Meaning("invalid generic resource", ("gres", "gpus"), ("sinfo -o '%P %G'",)),
    _Meaning("wall", ("walltime_minutes",), _LIMITS),  # QOSMaxWallDurationPerJobLimit
    _Meaning("accounting/qos policy", ("walltime_minutes", "qos", "gpus", "cpus"), _LIMITS),
    _Meaning("time limit", ("walltime_minutes",), _LIMITS),
    _Meaning("invalid job array", ("tasks_per_job",), ("scontrol show config | grep MaxArray",)),
    _Meaning("partition configuration", ("walltime_minutes", *_SHAPE), (_NODES, _LIMITS[1])),
    _Meaning("node configuration", _SHAPE, (_NODES,)),
    _Meaning("cpu count per node", ("cpus",), (_NODES,)),
    _Meaning("more processors requested", ("cpus",), (_NODES,)),
)
_ANYTHING = _Meaning("", ("qos", "walltime_minutes", *_SHAPE), (_NODES, ACCOUNTS))

_LATER = (
    "unable to contact slurm controller",
    "controller in standby",
    "socket timed out",
    "zero bytes were transmitted",
    "could not establish a configuration source",
    "unable to process configuration file",
    "authentication",  # munge is down, or its clock is off
    "munge",
    "connection refused",
    "connection timed out",
    "no answer within",  # our own words for a program that hangs
    "temporarily unable",
    "not available (inactive or drain)",
    "submitjob",  # QOSMaxSubmitJobPerUserLimit: room comes when jobs end
)
"""Nothing that is written in a site file would change these."""

_OPTION = re.compile(r"--([a-z][a-z-]*)")


def error_of(resolved: Resolved, refusals: Sequence[Refusal]) -> UsageError:
    """One error for all that was refused, to be raised."""
    said = {refusal.said for refusal in refusals}
    if len(said) == 1:
        kinds = " and ".join(refusal.kind for refusal in refusals)
        what = f"Slurm would not run the {kinds} job{'s' * (len(refusals) > 1)}: {said.pop()}"
    else:
        what = "Slurm would not run " + "; ".join(f"the {r.kind} job: {r.said}" for r in refusals)
    places, commands, keys = [], [], []
    for refusal in refusals:
        meaning, names = _keys(resolved, refusal)
        keys += names
        places += [_place(resolved, key) for key in names]
        commands += [f"`{command}`" for command in meaning.lists]
    return UsageError(
        what,
        where="; ".join(dict.fromkeys(places)),
        valid=f"what is listed by {', '.join(dict.fromkeys(commands))}",
        fix=_fix(keys),
    )


def passes(said: str) -> bool:
    """Whether a sentence is about Slurm's own state, and another hour may hear another one."""
    return any(words in said.lower() for words in _LATER)


def later(said: str) -> TryAgainLater:
    """The error of a Slurm that cannot answer now."""
    return TryAgainLater(
        f"Slurm does not take jobs now: {said}",
        where="sbatch --test-only; nothing was submitted",
        fix="look at `sinfo` and `scontrol ping`, then run the same command again",
    )


def _keys(resolved: Resolved, refusal: Refusal) -> tuple[_Meaning, list[str]]:
    """What a sentence means, and the dotted keys it is most likely about."""
    said = refusal.said.lower()
    extra = getattr(resolved.site, refusal.section).extra
    options = [name for name in _OPTION.findall(said) if name in extra]
    if options:
        keys = [f"{refusal.section}.extra.{name}" for name in options]
        return _Meaning("", (), ("sbatch --help",)), keys
    meaning = next((m for m in _MEANINGS if m.words in said), _ANYTHING)
    if meaning.keys == ("account",):
        suffixed = refusal.kind == "worker" and resolved.site.account_gpu_suffix
        return meaning, ["account", "account_gpu_suffix"] if suffixed else ["account"]
    if meaning.keys == ("tasks_per_job",):
        return meaning, ["agent.tasks_per_job" if refusal.kind == "agent" else "workers.count"]
    shape = encode(getattr(resolved.site, refusal.section))
    given = [key for key in meaning.keys if shape.get(key)]
    return meaning, [f"{refusal.section}.{key}" for key in given or meaning.keys[:1]]


def _place(resolved: Resolved, key: str) -> str:
    """`worker_job.qos = premium (site.yaml:18)`."""
    value = encode(resolved.workflow if key.startswith("workers.") else resolved.site)
    for part in key.split("."):
        value = value.get(part) if value else None
    if value is None:
        return f"{key} is not set"
    return f"{key} = {value} ({resolved.sources.get(key, 'default')})"


def _fix(keys: Sequence[str]) -> str:
    if "account" in keys:
        return GIVE_ACCOUNT
    return f"--set {keys[0]}=… tries another value, your own site file keeps it"

"""Which variables of the submitter go along into a job: a list, and no key in a worker's.

sbatch is run with these alone and hands all it has to the job. Its own option `--export=A,B` does
less and more: Slurm then logs the user in on the node to add what the profile exports, keys
among it, and holds the job where that takes longer than 2 s (GetEnvTimeout). Variables like
SBATCH_QOS, which sbatch obeys before a script's own lines, stay outside as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from pike_hpc.config import Resolved

ALWAYS = (
    *("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LD_LIBRARY_PATH", "PYTHONPATH"),
    *("LANG", "LC_*", "TZ"),
    *("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "SCRATCH", "SLURM_CONF"),
    # `module` is a shell function. Which modules are loaded stays behind: a job loads its own.
    *("BASH_ENV", "BASH_FUNC_*", "MODULEPATH", "MODULESHOME", "MODULES_*", "LMOD_*"),
    *("CUDA_HOME", "CUDA_PATH", "APPTAINER_CACHEDIR", "APPTAINER_TMPDIR", "PIKE_LANES_PER_GPU"),
)
"""Names, or patterns with a star, that every job gets where they are set."""

_WAY_OUT = (
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"),
)
"""How a provider is reached. A proxy's address may hold a password: agents only."""

_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)")


def exports(resolved: Resolved, kind: str) -> tuple[str, ...]:
    """What a job of `kind` (worker or agent) gets: ALWAYS, what setup lines name, an agent's keys.

    Names only, so that they can be shown; nothing here has seen a value. RUN/code/exports.txt has
    a worker's, for one that is submitted by hand.
    """
    site = resolved.site
    named = {name for line in site.setup for name in _VARIABLE.findall(line)}
    names = {*ALWAYS, *site.identify.env, *named}
    keys = key_names(resolved)
    if kind == "worker":
        return tuple(sorted(names - keys))
    return tuple(sorted(names | keys | set(_WAY_OUT)))


def key_names(resolved: Resolved) -> set[str]:
    """The variables that hold keys of a run's models; RUN/code/keys.txt names them, too."""
    return {m.key_env for m in resolved.workflow.models.values() if m.key_env}


def handed_over(
    environ: Mapping[str, str], patterns: Iterable[str], never: Iterable[str] = ()
) -> dict[str, str]:
    """The part of an environment that goes along; `never` are names no pattern may bring in."""
    patterns, never = tuple(patterns), frozenset(never)
    return {
        name: value
        for name, value in environ.items()
        if name not in never and any(fnmatchcase(name, pattern) for pattern in patterns)
    }

"""Which engines work on this host: by running something under each, once.

Contract: an engine is chosen because it ran a program here, never because it is installed. It
does not know how well the engine isolates: `measure` does.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pike_hpc.machine import ask
from pike_hpc.records import UsageError
from pike_hpc.sandbox.command import command
from pike_hpc.sandbox.host import HostFacts
from pike_hpc.sandbox.leftovers import forget_ended
from pike_hpc.sandbox.spec import Engine, SandboxSpec

AUTO = "auto"
AUTO_ORDER = (Engine.BUBBLEWRAP, Engine.UNSHARE, Engine.NONE)
"""Best known first. The others need an image, so they are only ever chosen by name."""

TRIAL_TIMEOUT_S = 60.0
"""An image on a cold parallel file system starts slowly; the others need milliseconds."""

_TRIAL_ENV = {"PATH": "/usr/bin:/bin"}

_FIX = {
    Engine.BUBBLEWRAP: "install bubblewrap (apt-get install bubblewrap, dnf install bubblewrap), "
    "and allow user namespaces to ordinary users",
    Engine.UNSHARE: "allow user namespaces to ordinary users (user.max_user_namespaces above 0; "
    "on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0), or name another container.engine",
    Engine.APPTAINER: "install apptainer or load its module, and name an image that exists",
    Engine.PODMAN_HPC: "on Perlmutter: `podman-hpc images` lists what is there, and `make image` "
    "pulls and migrates one",
    Engine.DOCKER: "start its daemon and be one of its users; `docker images` lists what is there",
    Engine.PODMAN: "install podman and uidmap, give the user ranges in /etc/subuid and "
    "/etc/subgid; `podman images` lists what is there",
    Engine.NONE: "as root, install util-linux (setpriv, prlimit) and keep Python and the package "
    "in folders that every user may enter; or run as an ordinary user",
}


def auto_order(facts: HostFacts) -> tuple[Engine, ...]:
    """What `auto` tries, best first.

    As root bubblewrap makes no user namespace, and the processes of all its sandboxes are counted
    together: one program's are then missing to another.
    """
    if facts.is_root and facts.counts_per_namespace:
        return tuple(sorted(AUTO_ORDER, key=lambda engine: engine is not Engine.UNSHARE))
    return AUTO_ORDER


def refusal(
    engine: Engine,
    facts: HostFacts,
    trial: SandboxSpec | None = None,
    timeout_s: float = TRIAL_TIMEOUT_S,
) -> str | None:
    """Why `engine` cannot run `trial` (default: `true`) on this host; None when it can.

    The trial's program must be harmless and end by itself with status 0.
    """
    trial = trial or SandboxSpec(argv=("true",), env=_TRIAL_ENV)
    return _tried(engine, facts, trial, timeout_s)[1]


def answer(engine: Engine, facts: HostFacts, spec: SandboxSpec) -> str:
    """What a harmless program prints under `engine`. Raises UsageError where it ends badly."""
    _require_image(engine, spec)
    said, why_not = _tried(engine, facts, spec)
    if why_not is not None:
        raise _does_not_work(engine, why_not, facts)
    return said


def _tried(
    engine: Engine, facts: HostFacts, spec: SandboxSpec, timeout_s: float = TRIAL_TIMEOUT_S
) -> tuple[str, str | None]:
    """(what a program printed, None where it ended with status 0, else why it did not)."""
    try:
        argv = command(engine, spec, facts)
    except UsageError as error:
        return "", error.what
    said = ask(argv, timeout_s)
    if said.hangs:
        return "", f"a trial gave {said.complaint}"
    return said.stdout, None if said.status == 0 else said.complaint


def available(facts: HostFacts, trial: SandboxSpec | None = None) -> tuple[Engine, ...]:
    """The engines that work here without an image, best first."""
    return tuple(e for e in auto_order(facts) if refusal(e, facts, trial) is None)


def choose(wanted: str, facts: HostFacts, trial: SandboxSpec | None = None) -> Engine:
    """The engine of that name, or for "auto" the first that works. Raises UsageError.

    Args:
        wanted: a value of `container.engine`, or "auto".
        facts: the host.
        trial: what to try it with, best Python itself with the prefixes it will need.
    """
    if wanted == AUTO:
        reasons = []
        for engine in auto_order(facts):
            reason = refusal(engine, facts, trial)
            if reason is None:
                return engine
            reasons.append(f"{engine}: {reason}")
        raise UsageError(
            "no sandbox works here", where="; ".join(reasons), fix=_FIX[Engine.UNSHARE]
        )
    try:
        engine = Engine(wanted)
    except ValueError:
        raise UsageError(
            f"no sandbox is called {wanted!r}",
            where="container.engine",
            valid=", ".join((AUTO, *Engine)),
        ) from None
    if trial is not None:
        _require_image(engine, trial)
    if engine.is_container:
        forget_ended(engine, facts)
    reason = refusal(engine, facts, trial)
    if reason is not None:
        raise _does_not_work(engine, reason, facts, trial)
    return engine


def _require_image(engine: Engine, spec: SandboxSpec) -> None:
    """Raises UsageError where none is named for an engine that runs one: it may well work."""
    if engine.runs_image and spec.image is None:
        raise UsageError(
            f"engine {engine} runs an image and none is named",
            where="container.image, or --image",
            fix="name one that is there (`make image` makes them), or leave the engine to `auto`",
        )


def _does_not_work(
    engine: Engine, reason: str, facts: HostFacts, trial: SandboxSpec | None = None
) -> UsageError:
    return UsageError(
        f"engine {engine} does not work here: {reason}",
        where="container.engine",
        valid=", ".join((AUTO, *available(facts, trial))),
        fix=_FIX[engine],
    )


def python_trial(spec: SandboxSpec, python: str | Path) -> SandboxSpec:
    """A trial of `spec` with an interpreter: whether Python starts with what is shown."""
    return replace(spec, argv=(str(python), "-I", "-c", "pass"))

"""The argv of a sandboxed program: one pure function, no I/O.

Contract: `command(engine, spec, facts)` only writes what is to be executed. The caller starts it
in a session of its own with stdin from /dev/null, and ends it by SIGKILL to that process group:
engines with a PID namespace then lose all their processes. A program ended by signal N inside
such an engine shows as exit status 128+N. It does not know whether the engine works here.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path, PurePosixPath

from pike_hpc.records import UsageError
from pike_hpc.sandbox.containers import container
from pike_hpc.sandbox.filter import MAX_TIMERS, seccomp
from pike_hpc.sandbox.host import IMAGE_PATH, IMAGE_PYTHON, NOBODY, HostFacts
from pike_hpc.sandbox.narrow import HAND_OVER_FD
from pike_hpc.sandbox.spec import SCRATCH, Engine, SandboxSpec

ENTER = Path(__file__).with_name("enter.py")
NARROW = Path(__file__).with_name("narrow.py")
BOUND = Path(__file__).with_name("bound.py")

KEEPERS = {Engine.NONE: 0, Engine.UNSHARE: 2, Engine.BUBBLEWRAP: 2}
"""Processes of the engine's own that live as long as the program. Apptainer's threads are many."""
KEEPERS_MB = 24
"""Memory of theirs: two interpreters under unshare."""

TOGETHER = 16
"""Where the kernel counts the processes of all sandboxes of this host together, as root without a
user namespace, they may have so many times one's: six lanes of four GPUs keep some 90 runners."""

A_GPUS_NODE = re.compile(r"/dev/nvidia\d+")
"""The others, as nvidiactl and nvidia-uvm, belong to the driver."""

_MEBIBYTE = 1 << 20


def command(engine: Engine, spec: SandboxSpec, facts: HostFacts) -> list[str]:
    """What to execute so that `spec` runs under `engine` on the host of `facts`.

    Raises UsageError where the engine cannot take the spec (one that runs an image, without one; a
    trusted one, without an image), or where an untrusted program would run as root.
    """
    if spec.trusted and not engine.runs_image:
        raise UsageError(f"engine {engine} keeps no program of ours: it needs no image for it")
    if engine.runs_image and "PATH" in spec.env:
        path = f"{IMAGE_PATH}:{spec.env['PATH']}"
        spec = replace(spec, env={**spec.env, "PATH": path})
    if engine.is_container:
        shown, inside = _wrapped(spec, facts)
        return container(engine, shown, facts, inside)
    make = {
        Engine.NONE: _bare,
        Engine.UNSHARE: _unshare,
        Engine.BUBBLEWRAP: _bubblewrap,
        Engine.APPTAINER: _apptainer,
    }[engine]
    return [*_bounded(engine, spec, facts), *make(spec, facts)]


def _bare(spec: SandboxSpec, facts: HostFacts) -> list[str]:
    folder = [f"--chdir={spec.scratch}"] if spec.scratch else []
    # A limit on processes counts all of the user's, the judge's too, unless the uid is another.
    count = TOGETHER * spec.processes if facts.is_root else None
    return [
        *_narrowed(facts),
        *("env", "-i", *folder),
        *(f"{name}={value}" for name, value in sorted(spec.env.items())),
        *_become_nobody(facts),
        *_limits(spec, facts, count),
        *spec.argv,
    ]


def _unshare(spec: SandboxSpec, facts: HostFacts) -> list[str]:
    plan = {
        "argv": spec.argv,
        "env": dict(spec.env),
        "links": facts.links,
        "shown": _shown(spec, facts),
        "devices": [*facts.devices, *_gpu_devices(spec, facts)],
        "scratch_bytes": spec.scratch_mb * _MEBIBYTE,
        "memory_bytes": spec.memory_mb * _MEBIBYTE,
        "processes": spec.processes if facts.is_root or facts.counts_per_namespace else 0,
        "timers": MAX_TIMERS,
        "filter": seccomp(facts.machine).hex(),
        "outer_uid": facts.uid,
        "outer_gid": facts.gid,
        "inner_id": NOBODY,
    }
    return [facts.python, "-I", "-S", str(ENTER), json.dumps(plan, sort_keys=True)]


def _bubblewrap(spec: SandboxSpec, facts: HostFacts) -> list[str]:
    # Only bwrap itself can install the filter: before it has made its namespaces is too early.
    argv = [*_narrowed(facts, "--hand-over"), "bwrap"]
    argv += ["--seccomp", str(HAND_OVER_FD)] if seccomp(facts.machine) else []
    argv += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    argv += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    if facts.is_root:
        # Root's mounts reach folders that nobody may traverse; setpriv then gives the uid away.
        for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
            argv += ["--cap-add", capability]
    else:
        argv += ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    argv += ["--hostname", "sandbox", "--clearenv"]
    for name, value in sorted(spec.env.items()):
        argv += ["--setenv", name, value]
    for path, target in facts.links:
        argv += ["--symlink", target, path]
    argv += ["--proc", "/proc", "--dev", "/dev"]
    for device in _gpu_devices(spec, facts):
        argv += ["--dev-bind", device, device]
    size = ["--size", str(spec.scratch_mb * _MEBIBYTE), "--perms", "1777", "--tmpfs"]
    argv += [*size, "/dev/shm", *size, str(SCRATCH), "--remount-ro", "/dev"]  # noqa: S108
    shown = _shown(spec, facts)
    for folder in _parents([path for path, _ in shown]):
        # bwrap itself would make the parents of a bind with mode 0700.
        argv += ["--perms", "0755", "--dir", folder]
    for path, writable in shown:
        argv += ["--bind" if writable else "--ro-bind", path, path]
    argv += ["--remount-ro", "/", "--chdir", str(SCRATCH), "--"]
    count = spec.processes if facts.counts_per_namespace else None
    count = TOGETHER * spec.processes if facts.is_root else count
    return [*argv, *_become_nobody(facts), *_limits(spec, facts, count), *spec.argv]


def _apptainer(spec: SandboxSpec, facts: HostFacts) -> list[str]:
    if spec.image is None:
        raise UsageError(
            "engine apptainer runs an image and none is named",
            where="container.image",
            fix="name a .sif file, or choose another container.engine",
        )
    _check_apptainer(spec)
    argv = [
        "apptainer",
        "--silent",
        "exec",
        "--containall",
        "--no-home",
        "--cleanenv",
        "--no-privs",
    ]
    # --containall alone leaves the network open.
    argv += ["--net", "--network", "none", "--no-mount", "hostfs,home,cwd"]
    argv += ["--userns"] if facts.is_root else []
    argv += ["--nv"] if spec.gpu else []
    # Without a folder of ours SCRATCH is part of a session that sites limit, to 64 MB by default:
    # too small for what torch.compile writes.
    argv += ["--workdir", str(spec.scratch)] if spec.scratch else []
    shown, inside = _wrapped(spec, facts)
    for path in shown.read_only:
        argv += ["--bind", f"{path}:{path}:ro"]
    for path in spec.shared:
        argv += ["--bind", f"{path}:{path}:rw"]
    env = dict(spec.env)
    # The one variable that it lets nobody set from outside.
    home = ["env", f"HOME={env.pop('HOME')}"] if "HOME" in env else []
    for name, value in sorted(env.items()):
        argv += ["--env", f"{name}={value}"]
    argv += ["--pwd", str(SCRATCH), spec.image]
    return [*argv, *home, *inside]


def _wrapped(spec: SandboxSpec, facts: HostFacts) -> tuple[SandboxSpec, list[str]]:
    """What an image's own interpreter is to run, and the spec with that shown."""
    if spec.trusted:
        return spec, list(spec.argv)
    narrowed = _narrowed(facts, python=IMAGE_PYTHON)
    shown = replace(spec, read_only=(*spec.read_only, NARROW)) if narrowed else spec
    return shown, [*_limits(spec, facts, None), *narrowed, *spec.argv]


def _check_apptainer(spec: SandboxSpec) -> None:
    """Refuse what its options would split: they know no quoting."""
    paths = [str(p) for p in (*spec.read_only, *spec.shared)]
    split = [p for p in paths if ":" in p or "," in p]
    split += [name for name, value in sorted(spec.env.items()) if "," in value]
    if split:
        raise UsageError(
            "apptainer takes no ':' or ',' in a bound path, and no ',' in a variable's value",
            where=split[0],
        )


def _bounded(engine: Engine, spec: SandboxSpec, facts: HostFacts) -> list[str]:
    """The wrapper that limits all processes together, where a control group was handed to us."""
    if not (facts.control_group and spec.memory_mb and engine in KEEPERS):
        return []
    memory = (spec.memory_mb + KEEPERS_MB) * _MEBIBYTE
    processes = spec.processes + KEEPERS[engine]
    limits = (facts.control_group, str(memory), str(processes))
    return [facts.python, "-I", "-S", str(BOUND), *limits]


def _narrowed(facts: HostFacts, *options: str, python: str | None = None) -> list[str]:
    """The wrapper that refuses system calls; nothing where we know none of this machine."""
    code = seccomp(facts.machine).hex()
    return [python or facts.python, "-I", "-S", str(NARROW), *options, code] if code else []


def _become_nobody(facts: HostFacts) -> list[str]:
    """The wrapper that gives up every privilege, and root's uid."""
    if not facts.is_root:
        return ["setpriv", "--no-new-privs"] if "setpriv" in facts.programs else []
    if "setpriv" not in facts.programs:
        raise UsageError(
            "setpriv is absent, and nothing untrusted runs as root",
            fix="install util-linux, or run as an ordinary user",
        )
    return [
        *("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"),
        *("--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"),
    ]


def _limits(spec: SandboxSpec, facts: HostFacts, processes: int | None) -> list[str]:
    """The wrapper that sets resource limits: no core files; files, timers, memory, processes."""
    if "prlimit" not in facts.programs:
        return []
    argv = ["prlimit", "--core=0", f"--fsize={spec.scratch_mb * _MEBIBYTE}"]
    argv += [f"--sigpending={MAX_TIMERS}"]
    argv += [f"--data={spec.memory_mb * _MEBIBYTE}"] if spec.memory_mb else []
    argv += [f"--nproc={processes}"] if processes else []
    return argv


def _gpu_devices(spec: SandboxSpec, facts: HostFacts) -> list[str]:
    """NVIDIA's nodes that exist inside; all where it is not known which is the GPU's own."""
    if not spec.gpu:
        return []
    own = dict(facts.gpu_nodes).get(spec.gpu_uuid)
    devices = facts.gpu_devices
    return [d for d in devices if own is None or d == own or not A_GPUS_NODE.fullmatch(d)]


def _shown(spec: SandboxSpec, facts: HostFacts) -> list[tuple[str, bool]]:
    """Everything shown and whether it is writable; outer folders first, lest they cover inner."""
    shown = dict.fromkeys((*facts.system, *map(str, spec.read_only)), False)
    shown.update(dict.fromkeys(map(str, spec.shared), True))
    return sorted(shown.items())


def _parents(paths: list[str]) -> list[str]:
    """The folders above the given ones, outermost first, but for those that are made otherwise."""
    made = {"/", "/dev", "/proc", str(SCRATCH)}
    above = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
    return sorted(folder for folder in above - made if folder not in paths)

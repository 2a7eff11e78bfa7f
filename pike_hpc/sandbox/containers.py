"""The argv of sandboxes that a container's client makes: podman-hpc, docker and podman.

Contract: as of `sandbox.command`, which calls it. One command line serves all three but for what
tells a GPU, whose uid the program has, and which limits the host can keep.
"""

from __future__ import annotations

from pathlib import Path

from pike_hpc.records import UsageError
from pike_hpc.sandbox.host import IMAGE_PYTHON, NOBODY, HostFacts
from pike_hpc.sandbox.spec import SCRATCH, Engine, SandboxSpec

CONTAIN = Path(__file__).with_name("contain.py")
KEEP = Path(__file__).with_name("keep.py")

LABEL = "pike-hpc=sandbox"
"""By which containers of ours are told from others: see `pike_hpc.sandbox.leftovers`."""

_KEEPERS_MB = 24
_GPU = {
    Engine.PODMAN_HPC: ("--gpu",),
    Engine.DOCKER: ("--gpus", "all"),
    Engine.PODMAN: ("--device", "nvidia.com/gpu=all"),
}


def container(engine: Engine, spec: SandboxSpec, facts: HostFacts, inside: list[str]) -> list[str]:
    """What runs `inside` in a container of the spec's image.

    Args:
        engine: whose client.
        spec: what is shown, and limits.
        facts: the host; its `client_env` is all of the environment that the client gets.
        inside: the program and what wraps it there, by paths of the container.

    Raises UsageError where there is no image, or a path that the client's options would split.
    """
    if spec.image is None:
        raise UsageError(
            f"engine {engine} runs an image and none is named",
            where="container.image",
            fix="name one that is there (`make image`), or choose another container.engine",
        )
    shown = [(path, "ro") for path in (*spec.read_only, KEEP)]
    shown += [(path, "rw") for path in spec.shared]
    for path, _ in shown:
        if ":" in str(path):
            raise UsageError(f"{engine} takes no ':' in a bound path", where=str(path))
    argv = ["env", "-i", *(f"{name}={value}" for name, value in facts.client_env)]
    argv += [facts.python, "-I", "-S", str(CONTAIN), engine.value, "run"]
    argv += ["--rm", "--interactive", "--pull", "never", "--label", LABEL, "--log-driver", "none"]
    argv += ["--network", "none", "--ipc", "private"]
    # Results name the machine that they were measured on.
    argv += ["--uts", "host"] if spec.trusted else ["--hostname", "sandbox"]
    argv += ["--cap-drop", "all", "--security-opt", "no-new-privileges", "--read-only"]
    argv += _podmans_own() if engine is not Engine.DOCKER else _limits_together(spec)
    argv += ["--user", _user(engine, spec, facts)]
    size = f"size={spec.scratch_mb}m"
    argv += ["--tmpfs", f"{SCRATCH}:rw,exec,nosuid,nodev,mode=1777,{size}"]
    argv += ["--shm-size", f"{spec.scratch_mb}m"]
    argv += _GPU[engine] if spec.gpu else ()
    for path, mode in shown:
        argv += ["--volume", f"{path}:{path}:{mode}"]
    for name, value in sorted(spec.env.items()):
        argv += ["--env", f"{name}={value}"]
    argv += ["--workdir", str(SCRATCH), "--entrypoint", IMAGE_PYTHON, spec.image]
    argv += ["-I", "-S", str(KEEP)]
    argv += ["--cpus=" + ",".join(map(str, spec.cpus))] if spec.cpus else []
    return [*argv, *inside]


def client(engine: Engine, facts: HostFacts, *arguments: str) -> list[str]:
    """What executes the engine's own program, with those variables of ours that it needs."""
    return ["env", "-i", *(f"{n}={v}" for n, v in facts.client_env), engine.value, *arguments]


def _podmans_own() -> list[str]:
    # It would hand in the proxy's variables, and put writable folders over a read-only root.
    return ["--http-proxy=false", "--read-only-tmpfs=false"]


def _limits_together(spec: SandboxSpec) -> list[str]:
    """Docker's daemon always has control groups of its own; rootless podman seldom does."""
    if spec.trusted:
        return []
    argv = ["--pids-limit", str(spec.processes + 1)]
    if spec.memory_mb:
        memory = f"{spec.memory_mb + _KEEPERS_MB}m"
        argv += ["--memory", memory, "--memory-swap", memory]
    return argv


def _user(engine: Engine, spec: SandboxSpec, facts: HostFacts) -> str:
    """Ids inside: those that are ours outside, and root's outside for no untrusted program.

    Rootless podman maps us to 0. Another id would have it copy the image for each mapping; without
    a capability 0 is a number like any other.
    """
    if facts.is_root and not spec.trusted:
        return f"{NOBODY}:{NOBODY}"
    return f"{facts.uid}:{facts.gid}" if engine is Engine.DOCKER else "0:0"

"""How well an engine isolates here: by letting a program of ours attack from inside.

Contract: `measure` derives the level from attacks that were stopped, never from flags. What can
be seen from outside (a file that appeared, a connection that arrived, a process that died, the
owner of a file) is looked at from outside; for the rest the attacking program, which is ours,
reports. Everything it lays out is gone afterwards, or an hour later at another's start where it was
killed. Takes one to two seconds. It knows no engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pike_hpc.machine import ask
from pike_hpc.records import Isolation, PikeError
from pike_hpc.sandbox.command import command
from pike_hpc.sandbox.filter import MAX_TIMERS
from pike_hpc.sandbox.host import HostFacts, give_scratch
from pike_hpc.sandbox.levels import ATTACKS, level
from pike_hpc.sandbox.spec import Engine, SandboxSpec, environment, home

PROBE_TIMEOUT_S = 120.0
SCRATCH_MB, MEMORY_MB, PROCESSES = 8, 40, 6
"""Limits inside the probe, small so that going beyond them hurts nobody."""

_NONCE = "pike-probe-"
_KILLED_S = 3600.0
"""Older files of a measurement, which takes seconds, are of one that was killed. A home on another
machine may have another clock."""

_HERE = Path(__file__).parent
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the host's, which must not be shared


def measure(
    engine: Engine, facts: HostFacts, spec: SandboxSpec, *, python: str, folder: Path
) -> Isolation:
    """Attack from inside a sandbox like `spec` and report what was stopped.

    Args:
        engine: the engine to try.
        facts: the host.
        spec: as candidates will run; its program and environment are replaced and its limits
            made small, but a memory limit that is absent stays absent.
        python: an interpreter inside the sandbox.
        folder: where candidates' scratch folders lie on the host (`paths.tmp`).

    Raises PikeError when the attacking program did not get to its end.
    """
    with _laid_out(facts, spec, folder) as layout:
        inside = replace(
            spec,
            read_only=(*layout.read_only, layout.shown),
            shared=(*spec.shared, layout.shared),
            scratch=layout.scratch,
            scratch_mb=SCRATCH_MB,
            memory_mb=MEMORY_MB if spec.memory_mb else 0,
            processes=PROCESSES,
        )
        targets = json.dumps(layout.targets(inside))
        inside = replace(
            inside,
            argv=(python, "-I", "-S", str(_HERE / "attack.py"), targets),
            env=environment(home(engine, inside) or layout.scratch, threads=1),
        )
        said = _run(layout.held(command(engine, inside, facts), facts), engine)
        stopped = {name: not succeeded for name, succeeded in said.items()}
        stopped.update(layout.seen_outside(said))
    probes = {attack: stopped.get(attack, False) for attack in ATTACKS}
    return Isolation(level=level(probes), engine=engine.value, probes=probes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """What the attack is aimed at, outside."""

    nonce: str
    base: Path
    home_names: tuple[str, ...]
    read_only: tuple[Path, ...]
    listener: socket.socket
    abstract: socket.socket
    guarded: subprocess.Popen[bytes]
    plain: subprocess.Popen[bytes]
    doomed: subprocess.Popen[bytes]

    @property
    def shared(self) -> Path:
        return self.base / "shared"

    @property
    def shown(self) -> Path:
        """Shown read-only inside, though its mode lets everybody write."""
        return self.base / "shown"

    @property
    def scratch(self) -> Path:
        return self.base / "scratch"

    @property
    def beats(self) -> Path:
        """What the attack writes to for as long as it may run; not there when it must end."""
        return self.shared / f"{self.nonce}-beats"

    def held(self, argv: list[str], facts: HostFacts) -> list[str]:
        """The same, stopped once amid beats: whether it went on is written to `held`."""
        hold = str(_HERE / "hold.py")
        return [facts.python, "-I", "-S", hold, str(self.beats), str(self.base / "held"), *argv]

    @property
    def private_folders(self) -> tuple[Path, ...]:
        return (self.base / "private", self.base, Path.home(), Path.cwd(), Path("/"), Path("/etc"))

    @property
    def public_folders(self) -> tuple[Path, ...]:
        public = (tempfile.gettempdir(), "/tmp", "/var/tmp", _SHARED_MEMORY)  # noqa: S108
        return (self.base / "public", self.shown, *(Path(p) for p in public))

    def targets(self, spec: SandboxSpec) -> dict[str, Any]:
        """What the attacking program is told."""
        folders = (*self.private_folders, *self.public_folders, *self.read_only)
        return {
            "nonce": self.nonce,
            "guarded_pid": self.guarded.pid,
            "plain_pid": self.plain.pid,
            "signal_pid": self.doomed.pid,
            "secret": str(self.base / "private" / "secret"),
            "home": str(Path.home()),
            "home_names": self.home_names,
            "shared_memory": str(_SHARED_MEMORY / f"{self.nonce}-shm"),
            "folders": [str(p) for p in folders],
            "read_only": [str(p) for p in (*self.read_only, self.shown)],
            "open_file": str(self.shown / "file"),
            "files": [str(_HERE / "attack.py"), str(self.base / "private" / "secret")],
            "tcp_port": self.listener.getsockname()[1],
            "abstract_name": self.nonce,
            "shared": str(self.shared),
            "beats": str(self.beats),
            "timers": MAX_TIMERS,
            "scratch_mb": spec.scratch_mb,
            "memory_mb": spec.memory_mb,
        }

    def seen_outside(self, said: dict[str, bool]) -> dict[str, bool]:
        """Attacks to whether they were stopped, as far as it shows on this side."""
        shown = self.shared / self.nonce
        held = self.base / "held"
        rested = held.exists() and held.read_text(encoding="ascii") == "rested"
        return {
            "work_while_stopped": rested and not said["work_while_stopped"],
            "signal": self.doomed.poll() is None,
            "network": not _arrived(self.listener),
            "abstract_socket": not _arrived(self.abstract),
            "write_private": not self._appeared(self.private_folders),
            "write_public": not (self._appeared(self.public_folders) or said["open_file"]),
            "write_read_only": not (self._appeared(self.read_only) or said["open_for_writing"]),
            "root_uid": shown.exists() and shown.stat().st_uid != 0,
        }

    def _appeared(self, folders: tuple[Path, ...]) -> bool:
        return any((folder / self.nonce).exists() for folder in folders)

    def remove(self) -> None:
        """Take back whatever the attack managed to create outside `base`."""
        for folder in (*self.private_folders, *self.public_folders, *self.read_only):
            with contextlib.suppress(OSError):
                (folder / self.nonce).unlink()


@contextlib.contextmanager
def _laid_out(facts: HostFacts, spec: SandboxSpec, folder: Path) -> Iterator[_Layout]:
    nonce = f"{_NONCE}{secrets.token_hex(8)}"
    forget_killed(Path.home(), f".{_NONCE}*")
    forget_killed(_SHARED_MEMORY, f"{_NONCE}*")
    with contextlib.ExitStack() as stack:
        base = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="pike-probe-", dir=folder))
        )
        base.chmod(0o755)
        for name, mode in (
            ("private", 0o700),
            ("public", 0o1777),
            ("shown", 0o777),
            ("shared", 0o1777),
        ):
            (base / name).mkdir()
            (base / name).chmod(mode)
        stack.enter_context(_file(base / "shown" / "file", nonce, 0o666))
        (base / "scratch").mkdir()
        give_scratch(base / "scratch", facts)
        secret = base / "private" / "secret"
        secret.touch(0o600)
        secret.write_text(nonce, encoding="utf-8")
        stack.enter_context(_file(_SHARED_MEMORY / f"{nonce}-shm", nonce, 0o666))
        stack.enter_context(_file(Path.home() / f".{nonce}", nonce, 0o600))
        layout = _Layout(
            nonce=nonce,
            base=base,
            home_names=_hidden_names(Path.home(), (*spec.read_only, *spec.shared, base, _HERE)),
            read_only=(*spec.read_only, _HERE),
            listener=stack.enter_context(socket.create_server(("127.0.0.1", 0))),
            abstract=stack.enter_context(_abstract_listener(nonce)),
            guarded=stack.enter_context(_victim(facts, "guarded", nonce)),
            plain=stack.enter_context(_victim(facts, "plain", nonce)),
            doomed=stack.enter_context(_victim(facts, "plain", nonce)),
        )
        stack.callback(layout.remove)
        yield layout


def _hidden_names(folder: Path, shown: tuple[Path, ...]) -> tuple[str, ...]:
    """Names in a folder that no path shown inside leads through."""
    try:
        names = {entry.name for entry in folder.iterdir()}
    except OSError:
        names = set()
    through = {p.relative_to(folder).parts[0] for p in shown if folder in p.parents}
    return tuple(sorted(names - through))


def forget_killed(folder: Path, names: str) -> None:
    """Remove what a measurement that was killed left there; it does not raise.

    Args:
        folder: others may measure there now, on other machines as well: theirs are new.
        names: a pattern; of what matches, only files that are ours are removed.
    """
    try:
        paths = list(folder.glob(names))
    except OSError:
        return
    for path in paths:
        with contextlib.suppress(OSError):
            found = path.lstat()
            old = time.time() - found.st_mtime > _KILLED_S
            if old and stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
                path.unlink()


@contextlib.contextmanager
def _file(path: Path, text: str, mode: int) -> Iterator[None]:
    """A file for the time being; where none can be made, there is nothing to attack."""
    try:
        path.touch(0o600, exist_ok=False)
        path.chmod(mode)
        path.write_text(text, encoding="utf-8")
    except OSError:
        yield
        return
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _abstract_listener(name: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        yield listener


@contextlib.contextmanager
def _victim(facts: HostFacts, kind: str, nonce: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [facts.python, "-I", "-S", str(_HERE / "victim.py"), kind, nonce],
        env={"PIKE_PROBE": nonce},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def _arrived(listener: socket.socket) -> bool:
    listener.setblocking(False)
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def _run(argv: list[str], engine: Engine) -> dict[str, bool]:
    answer = ask(argv, PROBE_TIMEOUT_S)
    try:
        said = json.loads(answer.stdout)
        return {str(name): bool(succeeded) for name, succeeded in said.items()}
    except (ValueError, AttributeError):
        raise PikeError(
            f"the isolation of engine {engine} could not be measured: {answer.complaint}",
            where="sandbox probe",
            fix="check that the interpreter and the package are readable inside, or name another "
            "container.engine",
        ) from None

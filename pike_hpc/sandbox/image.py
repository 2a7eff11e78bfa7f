"""What a container image is: there or not, its digest, and what its labels say it holds.

Contract: `inspect` asks the engine that would run it; for a file the digest is that of its bytes.
Labels are those of containers/*.def: pike.torch, pike.cuda, ... An image without them is one of
somebody else's, which is allowed. It does not know what versions are wanted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pike_hpc.machine import Answer, ask
from pike_hpc.records import UsageError
from pike_hpc.sandbox.containers import client
from pike_hpc.sandbox.host import HostFacts
from pike_hpc.sandbox.spec import Engine

PREFIX = "pike."
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A container image that is there."""

    digest: str
    """sha256:…, of the file, or as the engine has it."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Those of ours, without PREFIX: torch, cuda, python, ..."""


def inspect(engine: Engine, image: str, facts: HostFacts, *, where: str) -> Image:
    """The image that `engine` would run.

    Args:
        engine: one that runs an image.
        image: a file's path, or a name.
        facts: this host's.
        where: file and line that name it, for the message.

    Raises UsageError where it is not there, or is no image.
    """
    if engine is Engine.APPTAINER:
        return _of_file(Path(image), where)
    argv = client(engine, facts, "image", "inspect", image)
    done = _asked(argv, engine)
    if done is None or done.status != 0:
        said = done.complaint if done else f"{engine} is not installed"
        raise _missing(engine, image, where, said)
    try:
        (found, *_) = json.loads(done.stdout)
        digest = str(found.get("Digest") or found["Id"])
        # Podman has them at the top, docker below Config.
        labels = found.get("Labels") or (found.get("Config") or {}).get("Labels")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _missing(engine, image, where, f"{engine} describes it in an unknown way") from None
    return Image(digest=_named(digest), labels=ours(labels or {}))


def ours(labels: Mapping[str, object]) -> dict[str, str]:
    """The labels that definitions of containers/ set."""
    return {k.removeprefix(PREFIX): str(v) for k, v in labels.items() if k.startswith(PREFIX)}


def _of_file(file: Path, where: str) -> Image:
    try:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise _missing(Engine.APPTAINER, str(file), where, error.strerror or "") from None
    done = _asked(["apptainer", "inspect", "--json", "--labels", str(file)], Engine.APPTAINER)
    labels: dict[str, object] = {}
    if done is not None and done.status == 0:
        try:
            labels = json.loads(done.stdout)["data"]["attributes"]["labels"] or {}
        except (ValueError, KeyError, TypeError):
            labels = {}
    elif done is not None:
        said = f"apptainer cannot read it: {done.complaint}"
        raise _missing(Engine.APPTAINER, str(file), where, said)
    return Image(digest=_named(digest), labels=ours(labels))


def _named(digest: str) -> str:
    return digest if digest.startswith("sha256:") else f"sha256:{digest}"


def _asked(argv: list[str], engine: Engine) -> Answer | None:
    """What the program answered; None where there is none on this machine."""
    said = ask(argv, _TIMEOUT_S)
    if said.hangs:
        raise UsageError(
            f"{engine} hangs: asked for its image it gave {said.complaint}",
            where=" ".join(argv[-4:]),
            fix="run that by hand; on a login node ask the site, on your own machine its daemon",
        )
    return None if said.missing or said.status == 127 else said  # env(1): no such program


def _missing(engine: Engine, image: str, where: str, said: str) -> UsageError:
    return UsageError(
        f"no image {image} for engine {engine}" + (f": {said}" if said else ""),
        where=where,
        fix="`make image SITE=…` pulls or builds one; --set container.image=… names another",
    )

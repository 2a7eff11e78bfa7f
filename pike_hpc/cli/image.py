"""The image that a run's candidates are kept in, looked at before anything is started."""

from __future__ import annotations

import dataclasses
import functools

from pike_hpc import sandbox
from pike_hpc.cli.judging_torch import require_tested, runs_image
from pike_hpc.config import Resolved
from pike_hpc.records import UsageError
from pike_hpc.worker import SIMULATED


def with_digest(resolved: Resolved) -> Resolved:
    """The configuration with the digest of the image that is there; as it is without an image.

    Verdicts are filed under that digest, in journal and archive.

    Raises UsageError where the image is missing, or is another than the one that was named by
    `container.digest`, or holds a torch that we cannot judge.
    """
    digest = check_image(resolved)
    if digest is None:
        return resolved
    container = dataclasses.replace(resolved.site.container, digest=digest)
    site = dataclasses.replace(resolved.site, container=container)
    return dataclasses.replace(resolved, site=site)


def check_image(resolved: Resolved) -> str | None:
    """The digest of the image that a run's candidates are kept in; raises as `with_digest`."""
    container = resolved.site.container
    if container.image is None or not runs_image(container.engine):
        return None
    if SIMULATED in resolved.workflow.evaluate.devices:
        return None  # verdicts are made up: no image is started
    where = resolved.sources.get("container.image", "container.image")
    found = _found(container.engine, container.image, where)
    if container.digest is not None and found != _prefixed(container.digest):
        raise UsageError(
            f"image {container.image} is another than the run's: {found}",
            where=resolved.sources.get("container.digest", "container.digest"),
            valid=_prefixed(container.digest),
            fix="put the old one back, or start a new run, which takes the image that is there",
        )
    return found


@functools.cache
def digest_of(engine: str, image: str | None) -> str | None:
    """The digest of an image named on the command line; None where none is run."""
    if image is None or not runs_image(engine):
        return None
    return _found(engine, image, "--image")


@functools.cache
def _found(engine: str, image: str, where: str) -> str:
    """Looked at once a process: a file of gigabytes takes seconds to hash."""
    found = sandbox.inspect(sandbox.Engine(engine), image, sandbox.look(), where=where)
    check_version(found, image, where)
    return found.digest


def check_version(found: sandbox.Image, image: str, where: str) -> None:
    """Raises UsageError where the image's labels name a torch that we cannot judge.

    One without labels is asked by the worker: a login node may not be able to start it.
    """
    torch = found.labels.get("torch")
    if torch is not None:
        require_tested(torch, image, where)


def _prefixed(digest: str) -> str:
    return digest if digest.startswith("sha256:") else f"sha256:{digest}"

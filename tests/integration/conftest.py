"""The lane of this folder's tests; a module that needs another one makes its own."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def lane():
    """A real lane on this CPU, with little of everything. It leaves nothing behind."""
    from pike_hpc import sandbox  # noqa: PLC0415 - collecting needs no lane
    from pike_hpc.evaluate.lane import Lane  # noqa: PLC0415

    scratch = Path("/tmp") / f"pike-test-{os.getpid()}"
    engine = sandbox.choose("auto", sandbox.look())
    limits = {"threads": 1, "memory_mb": 2048, "scratch_mb": 1024, "processes": 64}
    with Lane("cpu", engine, scratch=scratch, **limits) as lane:
        yield lane
    assert list(scratch.iterdir()) == []
    scratch.rmdir()

"""A worker that is not at work yet says what it is at, and leaves nothing behind where it fails."""

import os
import subprocess
import sys

import pytest

from pike_hpc.cli.run import Run, tasks_of, wait_for
from pike_hpc.config import resolve
from pike_hpc.config.env import sites_dir

WORKFLOW = """
schema_version: 1
name: quick
tasks: {suite: level3-pike, ids: "4"}
search: {strategy: rules}
"""


@pytest.fixture
def run(tmp_path):
    """One that is judged in an image of docker's."""
    path = tmp_path / "w.yaml"
    path.write_text(WORKFLOW)
    resolved = resolve(
        path,
        "local",
        environ={},
        sites_dir=sites_dir({}),
        sets=("container.engine=docker", "container.image=one"),
        user_config_dir=tmp_path,
    )
    return Run.create(tmp_path / "run", resolved, tasks_of(resolved)[0])


@pytest.fixture
def programs(tmp_path):
    """A driver that answers when the fence is written to, and a client that knows no image."""
    folder = tmp_path / "bin"
    folder.mkdir()
    os.mkfifo(folder / "fence")
    for name, line in (
        ("nvidia-smi", f"read _ < {folder}/fence"),
        ("docker", "echo no such image >&2; exit 1"),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    return folder


def test_it_says_what_it_is_at_until_it_fails(run, programs):
    fence = os.open(programs / "fence", os.O_RDWR)
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "pike_hpc", "worker", str(run.dir)],
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": f"{programs}:/usr/bin:/bin"},
    ) as worker:
        try:
            assert wait_for(lambda: bool(run.mailbox.workers()), 60)
            ((beat, _),) = run.mailbox.workers()
            assert (beat.state, beat.phase) == ("starting", "look at its device and at torch")
            assert beat.pid == worker.pid
            os.write(fence, b"go on\n")
            _, said = worker.communicate(timeout=120)
        finally:
            worker.kill()
            os.close(fence)
    assert worker.returncode == 2
    assert "no such image" in said
    assert run.mailbox.workers() == ()

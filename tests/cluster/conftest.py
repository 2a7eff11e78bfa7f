"""What `make devcluster` brought up, for tests that need a real Slurm, Apptainer or podman.

Where none is up they are skipped with the reason; PIKE_REQUIRE makes failures of such skips.
"""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from builders.devcluster import (
    REPO,
    USER,
    Rig,
    Slurm,
    await_that,
    own_folder,
    public_python,
    why_not,
)
from builders.rehearsal import SUBMIT, Rehearsal
from builders.required import lacking
from builders.without_torch import lay_out


@pytest.fixture(scope="session")
def obstacle():
    return why_not()


@pytest.fixture(scope="session")
def demand(obstacle):
    """`demand(name)`: skip without a rig, or fail where PIKE_REQUIRE names this part of it."""

    def ask(name):
        if obstacle:
            lacking(name, f"{name}: {obstacle}")

    return ask


@pytest.fixture
def slurm(demand):
    """Four idle nodes, all GPUs free; jobs that are left end with the test."""
    demand("slurm")
    with own_folder() as folder:
        rig = Slurm(folder, public_python())
        rig.all_idle()
        yield rig
        rig.administer("scancel", f"--user={USER}")
        await_that(lambda: rig.administer("squeue", "-h", f"--user={USER}"), "")


@pytest.fixture
def rehearsal(slurm):
    """A run with made-up verdicts, not yet submitted."""
    return Rehearsal(slurm)


@pytest.fixture(scope="session")
def undisturbed(demand):
    """The canonical export of that run where nothing happens to it."""
    demand("slurm")
    with own_folder() as folder:
        rehearsal = Rehearsal(Slurm(folder, public_python()))
        rehearsal.pike(*SUBMIT, "run", "--simulate")
        return rehearsal.export("run")


@pytest.fixture(scope="module")
def busybox(demand):
    """A rig whose folder has an image's content below `root`: one static program."""
    demand("apptainer")
    with own_folder() as folder:
        rig = Rig(folder, public_python())
        rig.run("mkdir", "-p", "root/bin", "root/tmp")
        shutil.copy("/bin/busybox", folder / "root/bin/busybox")
        rig.run("ln", "-s", "busybox", "root/bin/sh")
        yield rig


@pytest.fixture(scope="session")
def judge(demand):
    """The user with an environment that holds no torch, as at a cluster: images have it."""
    demand("apptainer")
    with own_folder() as folder:
        rig = Rig(folder, public_python())
        rig.run(rig.python, "-m", "venv", "--without-pip", "venv")
        rig.python = str(folder / "venv/bin/python")
        rig.packages = folder / "packages"
        rig.packages.mkdir()
        lay_out(rig.packages)
        yield rig


@pytest.fixture(scope="session")
def image_build(judge):
    """The file that is to be the CPU's image; what makes it and its log, where it isn't there."""
    target = judge.home / "pike-hpc/images/eval-cpu.sif"
    if target.exists():
        yield target, None, None
        return
    build, wheels = str(REPO / "containers/build.py"), str(judge.folder / "wheels")
    # Fetched as whoever runs the tests: pip's settings may be theirs alone.
    fetch = [sys.executable, build, "eval-cpu", "--only-wheels", "--wheels", wheels]
    make = judge.argv(judge.python, build, "--site", "devcluster", "--wheels", wheels)
    behind = ["nice", "-n", "10", *(["ionice", "-c3"] if shutil.which("ionice") else [])]
    log = judge.folder / "image.log"
    with log.open("w") as said:
        script = f"{shlex.join(fetch)} && exec {shlex.join([*behind, *make])}"
        under_way = subprocess.Popen(
            ["sh", "-c", script], cwd=judge.folder, stdin=subprocess.DEVNULL, stdout=said,
            stderr=said, start_new_session=True,
        )  # fmt: skip
    yield target, under_way, log
    for number in (signal.SIGTERM, signal.SIGKILL):  # the first lets it clean up
        if under_way.poll() is None:
            os.killpg(under_way.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                under_way.wait(30)


@pytest.fixture(scope="session", autouse=True)
def _image_is_begun(request, obstacle):
    """Building takes minutes, in which the first tests wait for Slurm."""
    here = Path(__file__).parent
    wanted = any("judge" in i.fixturenames for i in request.session.items if i.path.parent == here)
    if wanted and not obstacle:
        request.getfixturevalue("image_build")


@pytest.fixture(scope="session")
def image(image_build):
    """The path of the CPU's image. One that lies there is used as it is."""
    target, under_way, log = image_build
    if under_way is not None:
        assert under_way.wait(2000) == 0, log.read_text("utf-8")
    return str(target)

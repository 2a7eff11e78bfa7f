"""What `make devcluster` brought up, for tests that need a real Slurm, Apptainer or podman.

Where none is up they are skipped with the reason; PIKE_REQUIRE makes failures of such skips.
"""

import shutil
import subprocess
import sys

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
def busybox():
    """A rig whose folder has an image's content below `root`: one static program."""
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
def image(judge):
    """The path of the CPU's image. Building takes minutes: one that lies there is used as it is."""
    images = judge.home / "pike-hpc/images"
    if not (images / "eval-cpu.sif").exists():
        wheels = judge.folder / "wheels"
        # Fetched as whoever runs the tests: pip's settings may be theirs alone.
        build = str(REPO / "containers/build.py")
        argv = [sys.executable, build, "eval-cpu", "--only-wheels", "--wheels", str(wheels)]
        subprocess.run(argv, check=True, capture_output=True)
        # A job builds it, as a site would have it.
        options = ("--site", "devcluster", "--job", "--wheels", str(wheels))
        judge.run(judge.python, build, *options, timeout_s=1200)
    return str(images / "eval-cpu.sif")

"""What `make devcluster` brought up, for tests that need a real Slurm, Apptainer or podman.

Where none is up they are skipped with the reason; PIKE_REQUIRE makes failures of such skips.
Modules of this folder are imported by name: tests have no packages.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)

from rig_user import USER, Rig, Slurm, await_that, own_folder, public_python, why_not  # noqa: E402

REQUIRED = os.environ.get("PIKE_REQUIRE", "").split(",")


@pytest.fixture(scope="session")
def obstacle():
    return why_not()


@pytest.fixture(scope="session")
def demand(obstacle):
    """`demand(name)`: skip without a rig, or fail where PIKE_REQUIRE names this part of it."""

    def ask(name):
        if obstacle and name in REQUIRED:
            pytest.fail(f"PIKE_REQUIRE names {name}: {obstacle}")
        if obstacle:
            pytest.skip(f"{name}: {obstacle}")

    return ask


@pytest.fixture
def slurm(demand):
    """Four idle nodes; jobs that are left end with the test."""
    demand("slurm")
    with own_folder() as folder:
        rig = Slurm(folder, public_python())
        await_that(lambda: rig.administer("sinfo", "-h", "-o", "%D %t", "-p", "gpu,cpu"), "4 idle")
        yield rig
        rig.administer("scancel", f"--user={USER}")
        await_that(lambda: rig.administer("squeue", "-h", f"--user={USER}"), "")


@pytest.fixture(scope="module")
def busybox():
    """A rig whose folder has an image's content below `root`: one static program."""
    with own_folder() as folder:
        rig = Rig(folder, public_python())
        rig.run("mkdir", "-p", "root/bin", "root/tmp")
        shutil.copy("/bin/busybox", folder / "root/bin/busybox")
        rig.run("ln", "-s", "busybox", "root/bin/sh")
        yield rig

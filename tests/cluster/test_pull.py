"""`make image` where it pulls: a real Apptainer, in a job, asks what stands in for docker.io."""

import sys

import pytest
from builders.devcluster import REPO
from builders.registry import image_of, registry

sys.path.insert(0, str(REPO / "containers"))
from recipes import RECIPES

BUILD = str(REPO / "containers/build.py")
PINNED = RECIPES["eval-cuda13"].upstream.partition("@")[2]


@pytest.fixture
def upstream(busybox):
    """What docker.io has, under whatever name: one static program."""
    with registry(image_of(busybox.folder / "root", {"org": "upstream"}), busybox.folder) as kept:
        yield kept


def test_a_job_pulls_the_image_and_says_which_came(slurm, upstream):
    options = ("--site", "devcluster", "--job")
    environ = {"HOME": str(slurm.folder), **upstream.environ}
    said = slurm.tried(slurm.python, BUILD, "eval-cuda12", *options, timeout_s=120, **environ)
    assert said.returncode == 0, said.stderr
    job = said.stdout.strip()
    slurm.await_accounts(job, "JobName,Partition,State", [["pike-image", "cpu", "COMPLETED"]])
    name, _, tag = RECIPES["eval-cuda12"].upstream.removeprefix("docker.io/").partition(":")
    assert upstream.asked == [f"{name} {tag}"]
    images = slurm.folder / "pike-hpc/images"
    assert slurm.run(
        "apptainer", "exec", str(images / "eval-cuda12.sif"), "/bin/sh", "-c", "echo x"
    )
    digest = slurm.run("sha256sum", str(images / "eval-cuda12.sif")).split()[0]
    assert f'container: {{digest: "sha256:{digest}"}}' in said.stderr
    assert said.stderr.removeprefix("image: ") == (images / "eval-cuda12.digest").read_text("utf-8")


@pytest.mark.parametrize("engine", ["apptainer", "podman"])
def test_another_image_than_the_pinned_one_is_refused(busybox, upstream, engine):
    options = ("--engine", engine, "--out", str(busybox.folder / "images"))
    said = busybox.tried(busybox.python, BUILD, "eval-cuda13", *options, **upstream.environ)
    assert said.returncode == 1
    assert upstream.asked[-1] == f"pytorch/pytorch {PINNED}"
    assert "does not match" in said.stderr
    assert "failed; what it said is above" in said.stderr
    assert not list((busybox.folder / "images").iterdir())


def test_where_the_job_fails_its_log_is_named(slurm, upstream):
    options = ("--site", "devcluster", "--job")
    environ = {"HOME": str(slurm.folder), **upstream.environ}
    said = slurm.tried(slurm.python, BUILD, "eval-cuda13", *options, timeout_s=120, **environ)
    assert said.returncode == 1
    (log,) = (slurm.folder / "pike-hpc/images").glob("build-*.log")
    assert f"its log: {log.with_stem('build-%j')}" in said.stderr
    assert "does not match" in log.read_text("utf-8")

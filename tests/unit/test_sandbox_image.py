"""Whether an image is there, and what it says it is, by programs that answer as the engines do."""

import hashlib
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pike_hpc.cli.image import check_image, check_version, with_digest
from pike_hpc.cli.judging_torch import require_torch
from pike_hpc.config import resolve
from pike_hpc.config.env import sites_dir
from pike_hpc.records import UsageError
from pike_hpc.sandbox import Engine, HostFacts, Image, SandboxSpec, answer, choose, inspect
from pike_hpc.sandbox.choose import refusal

LABELS = {"pike.torch": "2.13.0+cu130", "pike.cuda": "13.0.2", "org.other": "x"}
OURS = {"torch": "2.13.0+cu130", "cuda": "13.0.2"}


@pytest.fixture
def facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostFacts:
    (tmp_path / "bin").mkdir()
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    return HostFacts(
        uid=1000, gid=100, kernel=(6, 1), python="python3", client_env=(("PATH", path),)
    )


def program(tmp_path: Path, name: str, answer: object, status: int = 0) -> None:
    """A client that answers every command so."""
    file = tmp_path / "bin" / name
    said = json.dumps(answer) if status == 0 else ""
    wrong = "" if status == 0 else str(answer)
    file.write_text(f"#!/bin/sh\nprintf '%s' '{said}'\nprintf '%s' '{wrong}' >&2\nexit {status}\n")
    file.chmod(0o755)


def test_a_client_that_hangs_is_given_up(tmp_path, facts) -> None:
    program(tmp_path, "docker", "")
    # Its helper leaves the process group and keeps the client's output open.
    os.mkfifo(tmp_path / "fence")
    fence = os.open(tmp_path / "fence", os.O_RDWR)
    helper = f"setsid sh -c 'read _ < {tmp_path}/fence'"
    (tmp_path / "bin/docker").write_text(f"#!/bin/sh\n{helper} &\nexec sleep 60\n")
    trial = SandboxSpec(argv=("true",), env={}, image="pike:cpu")
    began = time.monotonic()
    said = refusal(Engine.DOCKER, facts, trial, timeout_s=0.5)
    assert said == "a trial gave no answer within 0.5 s"
    assert time.monotonic() - began < 30
    os.close(fence)


def test_an_engine_without_its_image_is_told_that_and_nothing_of_daemons(facts) -> None:
    trial = SandboxSpec(argv=("true",), env={})
    for ask in (
        lambda: choose("docker", facts, trial),
        lambda: answer(Engine.DOCKER, facts, trial),
    ):
        with pytest.raises(UsageError, match="docker runs an image and none is named") as error:
            ask()
        assert "daemon" not in str(error.value)
        assert "--image" in str(error.value)


@pytest.mark.parametrize(
    ("engine", "answer", "digest"),
    [
        (Engine.PODMAN, {"Digest": "sha256:aa", "Id": "bb", "Labels": LABELS}, "sha256:aa"),
        (Engine.PODMAN_HPC, {"Digest": "", "Id": "bb", "Labels": LABELS}, "sha256:bb"),
        (Engine.DOCKER, {"Id": "sha256:cc", "Config": {"Labels": LABELS}}, "sha256:cc"),
    ],
)
def test_a_clients_image(tmp_path, facts, engine, answer, digest) -> None:
    program(tmp_path, engine.value, [answer])
    assert inspect(engine, "pike:cuda", facts, where="here") == Image(digest=digest, labels=OURS)


def test_a_files_digest_is_that_of_its_bytes(tmp_path, facts) -> None:
    file = tmp_path / "image.sif"
    file.write_bytes(b"squash")
    program(tmp_path, "apptainer", {"data": {"attributes": {"labels": LABELS}}})
    found = inspect(Engine.APPTAINER, str(file), facts, where="here")
    assert found == Image(digest=f"sha256:{hashlib.sha256(b'squash').hexdigest()}", labels=OURS)


def test_an_image_without_our_labels_is_one_of_somebody_elses(tmp_path, facts) -> None:
    program(tmp_path, "podman", [{"Id": "bb", "Labels": None}])
    assert inspect(Engine.PODMAN, "i", facts, where="here").labels == {}


@pytest.mark.parametrize("engine", [Engine.PODMAN_HPC, Engine.PODMAN, Engine.DOCKER])
def test_an_image_that_is_not_there_is_one_message(tmp_path, facts, engine) -> None:
    program(tmp_path, engine.value, "Error: no such image", 125)
    with pytest.raises(UsageError) as caught:
        inspect(engine, "pike:cuda", facts, where="site.yaml:4")
    assert caught.value.what == f"no image pike:cuda for engine {engine}: Error: no such image"
    assert caught.value.where == "site.yaml:4"
    assert "make image" in (caught.value.fix or "")


def test_a_file_or_a_program_that_is_not_there(tmp_path, facts) -> None:
    with pytest.raises(UsageError, match="No such file"):
        inspect(Engine.APPTAINER, f"{tmp_path}/none.sif", facts, where="here")
    nowhere = replace(facts, client_env=(("PATH", str(tmp_path)),))
    with pytest.raises(UsageError, match="podman-hpc is not installed"):
        inspect(Engine.PODMAN_HPC, "i", nowhere, where="here")


@pytest.mark.parametrize("torch", ["2.10.1", "2.14.0+cu130", "3.0"])
def test_another_torch_than_we_test_is_refused(torch) -> None:
    with pytest.raises(UsageError, match=f"holds torch {torch[:3]}"):
        check_version(Image(digest="sha256:aa", labels={"torch": torch}), "i", "here")


@pytest.mark.parametrize("labels", [{}, {"torch": "2.11.0"}, {"torch": "2.13.1+cu130"}])
def test_one_that_we_test_or_that_says_nothing_is_taken(labels) -> None:
    check_version(Image(digest="sha256:aa", labels=labels), "i", "here")


def test_a_worker_asks_the_image_which_torch_it_has(tmp_path, facts) -> None:
    """The first thing it does; PyTorch's own images have no labels of ours."""
    program(tmp_path, "podman", {"torch": "2.10.0+cu128", "compiler": None, "headers": False})
    with pytest.raises(UsageError, match=r"image old holds torch 2\.10\.0") as caught:
        require_torch("podman", "old")
    assert caught.value.valid == "2.11 up to, and without, 2.14"
    program(tmp_path, "podman", {"torch": "2.13.0+cu128", "compiler": None, "headers": False})
    require_torch("podman", "new")
    program(tmp_path, "podman", {"torch": None, "compiler": None, "headers": False})
    with pytest.raises(UsageError, match="no torch in image bare"):
        require_torch("podman", "bare")


def test_a_run_keeps_to_the_image_that_it_began_with(tmp_path, facts) -> None:
    """What `submit` records is what `resume` compares with; another one of that name is refused."""
    image = tmp_path / "image.sif"
    image.write_bytes(b"squash")
    program(tmp_path, "apptainer", {"data": {"attributes": {"labels": LABELS}}})
    workflow = tmp_path / "w.yaml"
    workflow.write_text("schema_version: 1\nname: w\ntasks: {suite: level0}\n")
    sets = ["container.engine=apptainer", f"container.image={image}"]
    places = {"environ": {"HOME": str(tmp_path)}, "sites_dir": sites_dir({})}
    resolved = resolve(workflow, "local", **places, user_config_dir=tmp_path, sets=sets)
    began = with_digest(resolved)
    digest = f"sha256:{hashlib.sha256(b'squash').hexdigest()}"
    assert began.site.container.digest == digest
    assert check_image(began) == digest

    other = tmp_path / "other.sif"
    other.write_bytes(b"squeeze")
    container = replace(began.site.container, image=str(other))
    moved = replace(began, site=replace(began.site, container=container))
    with pytest.raises(UsageError, match="is another than the run's") as caught:
        check_image(moved)
    assert caught.value.valid == digest

"""How images are had: commands for each engine and site, and what the definitions say."""

import hashlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pike_hpc.bootstrap.install import pinned
from pike_hpc.cli.doctor_node import MIN_DRIVER
from pike_hpc.config.site import load_site, shipped_sites_dir

CONTAINERS = Path(__file__).parents[2] / "containers"
sys.path.insert(0, str(CONTAINERS))

from recipes import RECIPES, SQUASH  # noqa: E402

SQUASHED = f"--mksquashfs-args={SQUASH}"
ENVIRON = {
    **{"PATH": "/usr/bin:/bin", "HOME": "/home/me", "USER": "me", "SCRATCH": "/scratch/me"},
    "PYTHONPATH": str(CONTAINERS.parent),
}
LAWRENCIUM = "/global/scratch/users/me/pike-hpc"


def ended(*arguments: str, environ: dict[str, str] = ENVIRON) -> subprocess.CompletedProcess[str]:
    """How it ends, where nothing is to be run."""
    argv = [sys.executable, CONTAINERS / "build.py", *arguments, "--dry-run"]
    path = f"{environ['PYTHONPATH']}:{':'.join(p for p in sys.path if 'site-packages' in p)}"
    env = environ | {"PYTHONPATH": path}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


def commands(*arguments: str) -> list[list[str]]:
    """What would be run, in words."""
    done = ended(*arguments)
    assert done.returncode == 0, done.stderr
    return [shlex.split(line) for line in done.stdout.splitlines()]


def test_perlmutter_pulls_and_shows_it_to_the_nodes() -> None:
    upstream, name = RECIPES["eval-cuda12"].upstream, "localhost/pike-hpc:cuda12"
    assert commands("--site", "perlmutter") == [
        ["podman-hpc", "pull", upstream],
        ["podman-hpc", "tag", upstream, name],
        ["podman-hpc", "migrate", name],
    ]
    assert load_site("perlmutter", sites_dir=shipped_sites_dir()).container.image == name


def test_another_image_than_the_sites_has_another_name() -> None:
    *_, migrate = commands("eval-cuda13", "--site", "perlmutter")
    assert migrate == ["podman-hpc", "migrate", "localhost/pike-hpc:cuda13"]


@pytest.mark.parametrize(
    ("site", "environ", "words"),
    [
        ("nope", ENVIRON, ["'nope'", "valid:", "perlmutter"]),
        ("perlmutter", {k: v for k, v in ENVIRON.items() if k != "SCRATCH"}, ["SCRATCH"]),
    ],
)
def test_a_mistake_is_one_message(site: str, environ: dict[str, str], words: list[str]) -> None:
    done = ended("--site", site, environ=environ)
    assert done.returncode == 2
    assert done.stderr.startswith("pike-hpc: ")
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_perlmutter_builds_where_asked() -> None:
    wheels = "/scratch/me/pike-hpc/cache/wheels-eval-cuda12"
    assert commands("--site", "perlmutter", "--build") == [
        [
            *("podman-hpc", "build", f"--build-arg=BASE={RECIPES['eval-cuda12'].base}"),
            *(f"--build-arg=WHEELS={wheels}", f"--build-arg=TORCH={pinned('torch')}"),
            *("--build-arg=CUDA=12.6.3", f"--build-context=containers={CONTAINERS}"),
            *("--tag=localhost/pike-hpc:cuda12", f"--file={CONTAINERS}/eval.Containerfile"),
            wheels,
        ],
        ["podman-hpc", "migrate", "localhost/pike-hpc:cuda12"],
    ]


@pytest.mark.parametrize("build", [(), ("--build",)])
def test_lawrencium_has_a_job_pull_or_build_into_scratch(build: tuple[str, ...]) -> None:
    """Its login nodes are not for computing."""
    ((*sbatch, wrap),) = commands("--site", "lawrencium", "--account", "pc_mine", *build)
    assert sbatch == [
        *("sbatch", "--wait", "--parsable", "--job-name=pike-image", "--time=120"),
        *("--cpus-per-task=1", "--qos=lr_normal", "--partition=lr7", "--account=pc_mine"),
        f"--output={LAWRENCIUM}/images/build-%j.log",
    ]
    inside = shlex.split(wrap.removeprefix("--wrap="))
    assert inside[:3] == [
        "env",
        f"APPTAINER_CACHEDIR={LAWRENCIUM}/cache/apptainer",
        "APPTAINER_TMPDIR=/tmp",
    ]
    assert inside[4:] == [
        *(f"{CONTAINERS}/build.py", "eval-cuda12", "--inside-job", "--engine", "apptainer"),
        *("--out", f"{LAWRENCIUM}/images"),
        *("--wheels", f"{LAWRENCIUM}/cache/wheels-eval-cuda12", *build),
    ]
    (argv,) = commands(*inside[5:])
    image = f"{LAWRENCIUM}/images/eval-cuda12.new.sif"
    assert argv[:4] == ["apptainer", "build", "--force", SQUASHED]
    if build:
        assert argv[-2:] == [image, f"{CONTAINERS}/eval.def"]
    else:
        assert argv[-2:] == [image, f"docker://{RECIPES['eval-cuda12'].upstream}"]


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_other_engines_need_no_migration(engine: str) -> None:
    said = commands("eval-cuda13", "--engine", engine)
    assert [argv[:2] for argv in said] == [[engine, "pull"], [engine, "tag"]]
    (argv,) = commands("eval-cuda13", "--engine", engine, "--build", "--wheels", "/w")
    assert argv[:2] == [engine, "build"]


def test_without_a_site_the_cpus_image_is_built_here() -> None:
    (argv,) = commands("eval-cpu", "--mirror", "http://m/", "--wheels", "/w")
    assert argv == [
        *("apptainer", "build", "--force", SQUASHED, "--build-arg=MIRROR=http://m/"),
        *("--build-arg=WHEELS=/w", f"--build-arg=TORCH={pinned('torch')}"),
        f"--build-arg=TEST={CONTAINERS}/try_image.py",
        *(f"{CONTAINERS}/eval-cpu.new.sif", f"{CONTAINERS}/eval-cpu.def"),
    ]


def sections(name: str) -> dict[str, list[str]]:
    """The lines of each part of a definition, comments left out; "" is what stands above."""
    found: dict[str, list[str]] = {"": []}
    part = ""
    for line in (CONTAINERS / name).read_text("utf-8").splitlines():
        if line.startswith("%"):
            part = line.removeprefix("%").strip()
            found[part] = []
        elif line.strip() and not line.strip().startswith("#"):
            found[part].append(line.strip())
    return found


def test_the_definition_for_gpus_says_what_the_one_that_is_built_says() -> None:
    """It cannot be built where there is no registry: it may differ in what a GPU needs, only."""
    cpu, cuda = sections("eval-cpu.def"), sections("eval.def")
    assert set(cuda) - set(cpu) == {"environment"}
    assert cuda["files"] == cpu["files"]
    assert "setup" not in cuda  # it would run on the host
    assert set(cpu["post"]) - set(cuda["post"]) == {
        'echo "pike.debian $(cat /etc/debian_version)"',
        "for package in torch numpy ninja einops; do",
    }
    more = [line for line in cuda["post"] if line not in cpu["post"]]
    assert not [line for line in more if not re.search(r"apt-get|pike\.|triton|DEBIAN|done", line)]
    assert cuda[""] == ["Bootstrap: docker", "From: {{ BASE }}"]


def test_every_build_ends_with_the_same_test() -> None:
    """A text of its own in each definition would be another test soon."""
    cpu, cuda = sections("eval-cpu.def"), sections("eval.def")
    given = "{{ TEST }} /opt/try_image.py"
    assert given in cpu["files"]
    assert given in cuda["files"]
    assert cpu["test"] == ["exec python3 -I /opt/try_image.py cpu"]
    assert cuda["test"] == ["exec python3 -I /opt/try_image.py cuda"]
    *_, copy, run = (CONTAINERS / "eval.Containerfile").read_text("utf-8").splitlines()
    assert copy == "COPY --from=containers try_image.py /opt/"
    assert run == "RUN python3 -I /opt/try_image.py cuda"


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "path", "says"),
    [("cpu", "/nowhere", "'setpriv'"), ("cuda", "/usr/bin:/bin", "is not one for CUDA")],
)
def test_an_image_that_lacks_something_fails_its_test(kind: str, path: str, says: str) -> None:
    torch = pytest.importorskip("torch")
    if kind == "cuda" and torch.version.cuda:
        pytest.skip("this torch is one for CUDA")
    argv = [sys.executable, CONTAINERS / "try_image.py", kind]
    done = subprocess.run(argv, env={"PATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert says in done.stderr


def test_what_a_definition_leaves_open_is_given() -> None:
    for name, recipe in RECIPES.items():
        text = (CONTAINERS / recipe.definition).read_text("utf-8")
        given = {"WHEELS", "TORCH", "TEST", "BASE" if recipe.base else "MIRROR"}
        assert set(re.findall(r"{{ (\w+) }}", text)) == given, name
        if recipe.containerfile:
            file = (CONTAINERS / recipe.containerfile).read_text("utf-8")
            assert set(re.findall(r"^ARG (\w+)$", file, re.MULTILINE)) == {"BASE", "TORCH", "CUDA"}


def test_images_are_named_by_digest_or_full_version_and_of_the_torch_that_we_test() -> None:
    """A tag with its version can still be moved; one without it, as `latest`, is meant to be."""
    for name, recipe in RECIPES.items():
        for image in filter(None, (recipe.base, recipe.upstream)):
            assert re.fullmatch(
                r"docker\.io/[a-z/]+(@sha256:[0-9a-f]{64}|:\d+\.\d+\.\d+-[a-z0-9.-]+)", image
            ), name
        if "pytorch:" in recipe.upstream:
            assert recipe.upstream.partition("pytorch:")[2].startswith(f"{pinned('torch')}-cuda")
        if recipe.base:
            major, minor = re.findall(r"cuda:(\d+)\.(\d+)", recipe.base)[0]
            assert recipe.wheels == f"cu{major}{minor}"
            assert int(major) in MIN_DRIVER


def test_every_shipped_cluster_names_an_image_that_is_made() -> None:
    sites = shipped_sites_dir()
    for name in ("perlmutter", "lawrencium"):
        image = load_site(name, sites_dir=sites).container.image or ""
        made = {f"{recipe}.sif" for recipe in RECIPES} | {
            f"pike-hpc:{recipe.removeprefix('eval-')}" for recipe in RECIPES
        }
        assert image.rpartition("/")[2] in made


PROGRAMS = {
    "apptainer": "for target; do :; done; eval target=\\${$(($# - 1))}; echo image >$target",
    "podman": """[ "$1" != image ] || echo '[{"Digest": "sha256:abc", "Labels": {}}]'""",
}


@pytest.mark.parametrize("engine", list(PROGRAMS))
def test_what_was_got_is_recorded_so_that_it_can_be_pinned(tmp_path: Path, engine: str) -> None:
    program = tmp_path / "bin" / engine
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{PROGRAMS[engine]}\n")
    program.chmod(0o755)
    options = ["--engine", engine, "--out", str(tmp_path / "images")]
    argv = [sys.executable, CONTAINERS / "build.py", "eval-cuda12", *options]
    env = {"PATH": f"{program.parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = (tmp_path / "images/eval-cuda12.digest").read_text()
    digest = "sha256:abc"
    if engine == "apptainer":
        digest = "sha256:" + hashlib.sha256(b"image\n").hexdigest()
    assert f"from {RECIPES['eval-cuda12'].upstream}" in said
    assert f'container: {{digest: "{digest}"}}' in said
    assert said in done.stderr

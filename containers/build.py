"""Have an image of this folder: `python containers/build.py NAME [--site S]` (`make image`).

At a site, PyTorch's own image is pulled by default, `--build` builds ours; files lie below the
site's `paths.work`, and where the site says so (`container.build_in: job`) Slurm runs the build.
Wheels are downloaded out here, where pip's settings hold, and brought in as files: a build needs no
index of Python packages, and gets the versions of constraints.txt. Runs as an ordinary user who has
subordinate ids; standard library only, but for `--site`, which reads the site's file.
"""

import argparse
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import recipes  # noqa: E402

from pike_hpc.bootstrap.install import pinned  # noqa: E402
from pike_hpc.records import PikeError  # noqa: E402

TORCH_INDEX = "https://download.pytorch.org/whl"
"""Where PyTorch publishes its builds, asked only if pip's own sources lack them."""

PROGRAMS = {
    "apptainer": "load its module, or see https://apptainer.org/docs/admin/latest/installation.html",
    "debootstrap": "apt-get install debootstrap; elsewhere build on a machine with Debian",
    "mksquashfs": "apt-get install squashfs-tools",
    "newuidmap": "apt-get install uidmap, and give the user ranges in /etc/subuid and /etc/subgid",
}


def main() -> int:
    """Pull or build; returns the exit code."""
    try:
        return _have_image(_parser().parse_args())
    except PikeError as error:
        sys.stderr.write(f"pike-hpc: {error}\n")
        return error.exit_code


def _have_image(arguments: argparse.Namespace) -> int:
    if arguments.site:
        _apply_site(arguments)
    if arguments.name is None:
        return _refuse(f"name an image: {', '.join(recipes.RECIPES)}; or a site")
    recipe = recipes.RECIPES[arguments.name]
    wants_build = arguments.build or not recipe.upstream
    engine = arguments.engine or "apptainer"
    if wants_build and engine != "apptainer" and not recipe.containerfile:
        return _refuse(f"{arguments.name} is built by apptainer alone: --engine apptainer")
    if arguments.job and not arguments.inside_job:
        return _submit(arguments, wants_build)
    if not wants_build:
        return _make(arguments, engine, recipes.pull(engine, recipe, _fresh(arguments, engine)))
    if not arguments.only_wheels and not arguments.dry_run:
        missing = [p for p in _needed(engine, arguments.name) if not _find(p)]
        if missing:
            return _refuse("; ".join(f"no {p}: {PROGRAMS.get(p, 'load it')}" for p in missing))
    return _build(arguments, engine, recipe)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", choices=sorted(recipes.RECIPES))
    parser.add_argument("--site", help="whose engine, folders and queue are meant")
    parser.add_argument("--account", help="what Slurm charges for a job that makes it")
    parser.add_argument("--engine", choices=["apptainer", *recipes.CONTAINERS])
    parser.add_argument("--build", action="store_true", help="ours, and not PyTorch's own")
    parser.add_argument("--job", action="store_true", help="let Slurm build it; needs --site")
    parser.add_argument("--inside-job", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="folder of the image; default: here")
    parser.add_argument("--tag", default="", help="name of the image, for podman and docker")
    parser.add_argument("--wheels", type=Path, help="folder of wheels; filled where it is absent")
    parser.add_argument("--only-wheels", action="store_true", help="stop when they are there")
    parser.add_argument("--mirror", help="of Debian; default: the one this machine's apt uses")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    parser.set_defaults(options={}, python="python3", environ={})
    return parser


def _apply_site(arguments: argparse.Namespace) -> None:
    """Fill in what the site says and the command line does not."""
    from pike_hpc.cli.image_site import image_site  # noqa: PLC0415

    site = image_site(arguments.site, arguments.account)
    arguments.engine = arguments.engine or site.engine
    # The site's own name for its image is that of the one that it gets without being asked.
    arguments.tag = arguments.tag or (site.image if arguments.name is None else "")
    arguments.name = arguments.name or ("eval-cuda12" if site.has_gpus else "eval-cpu")
    arguments.out = arguments.out or site.work / "images"
    arguments.wheels = arguments.wheels or site.work / f"cache/wheels-{arguments.name}"
    arguments.job = arguments.job or site.as_job
    arguments.options = site.options
    # Homes are small, and building on a parallel file system fails for want of its attributes.
    arguments.environ = {
        "APPTAINER_CACHEDIR": str(site.work / "cache/apptainer"),
        "APPTAINER_TMPDIR": str(site.tmp),
    }


def _submit(arguments: argparse.Namespace, wants_build: bool) -> int:
    """Download here, where the way out is, and have a job do the rest."""
    if not arguments.site:
        return _refuse("--job needs --site, whose queue it is")
    command = [sys.executable, str(HERE / "build.py"), arguments.name, "--inside-job"]
    command += ["--engine", arguments.engine, "--out", str(arguments.out)]
    command += ["--wheels", str(arguments.wheels)]
    command += ["--tag", arguments.tag] if arguments.engine != "apptainer" else []
    command += ["--build"] if arguments.build else []
    command += ["--mirror", arguments.mirror] if arguments.mirror else []
    if wants_build and not arguments.dry_run and not _have_wheels(arguments):
        return 1
    log = arguments.out / "build-%j.log"
    argv = recipes.as_job(
        ["env", *(f"{k}={v}" for k, v in arguments.environ.items()), *command],
        arguments.options,
        log,
    )
    code = _run([argv], arguments, f"its log: {log}")
    if code == 0 and not arguments.dry_run:
        _say(_record(arguments).read_text("utf-8").strip())
    return code


def _build(arguments: argparse.Namespace, engine: str, recipe: recipes.Recipe) -> int:
    mirror = arguments.mirror or _mirror()
    if not recipe.base and mirror is None and not arguments.only_wheels:
        return _refuse("apt names no Debian mirror here: give --mirror URL")
    with tempfile.TemporaryDirectory(prefix="pike-image-") as folder:
        arguments.wheels = (arguments.wheels or Path(folder, "wheels")).resolve()
        if not arguments.dry_run and not _have_wheels(arguments):
            return 1
        if arguments.only_wheels:
            return 0
        base = {"BASE": recipe.base} if recipe.base else {"MIRROR": mirror}
        values = {**base, "WHEELS": arguments.wheels, "TORCH": pinned("torch")}
        if engine != "apptainer":
            values["CUDA"] = recipe.base.partition(":")[2].partition("-")[0]
        steps = recipes.build(engine, recipe, _fresh(arguments, engine), values)
        return _make(arguments, engine, steps)


def _fresh(arguments: argparse.Namespace, engine: str) -> str:
    """Beside the old one until it is whole and its test has passed; a name for the others."""
    if engine == "apptainer":
        return str((arguments.out or HERE) / f"{arguments.name}.new.sif")
    return arguments.tag or f"localhost/pike-hpc:{arguments.name.removeprefix('eval-')}"


def _make(arguments: argparse.Namespace, engine: str, steps: list[list[str]]) -> int:
    began = time.monotonic()
    fresh = Path(_fresh(arguments, engine))
    if engine == "apptainer" and not arguments.dry_run:
        fresh.parent.mkdir(parents=True, exist_ok=True)
    code = _run(steps, arguments, "")
    if code == 0 and engine == "apptainer" and not arguments.dry_run:
        image = fresh.with_name(f"{arguments.name}.sif")
        fresh.replace(image)
        size_mb, took_s = image.stat().st_size / 1e6, time.monotonic() - began
        _say(f"{image}: {size_mb:.0f} MB after {took_s:.0f} s")
    elif code != 0 and engine == "apptainer":
        fresh.unlink(missing_ok=True)
    if code == 0 and not arguments.dry_run:
        _write_record(arguments, engine)
    return code


def _record(arguments: argparse.Namespace) -> Path:
    """The file that says which image lies there."""
    return (arguments.out or HERE) / f"{arguments.name}.digest"


def _write_record(arguments: argparse.Namespace, engine: str) -> None:
    """A tag may mean another image tomorrow: say which one this is, and how to keep to it."""
    image = str(_record(arguments).with_suffix(".sif"))
    image = image if engine == "apptainer" else _fresh(arguments, engine)
    recipe = recipes.RECIPES[arguments.name]
    source = recipe.definition if arguments.build or not recipe.upstream else recipe.upstream
    digest = digest_of(engine, image)
    text = f'{image} from {source}; to refuse any other: container: {{digest: "{digest}"}}'
    _record(arguments).parent.mkdir(parents=True, exist_ok=True)
    _record(arguments).write_text(f"{text}\n", "utf-8")
    _say(text)


def digest_of(engine: str, image: str) -> str:
    """The digest of an image that is there, as `submit` compares it with `container.digest`."""
    if engine == "apptainer":
        with Path(image).open("rb") as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    from pike_hpc.sandbox import Engine, inspect, look  # noqa: PLC0415 - wants more than Python

    return inspect(Engine(engine), image, look(), where="--engine").digest


def _run(steps: list[list[str]], arguments: argparse.Namespace, more: str) -> int:
    for argv in steps:
        if arguments.dry_run:
            sys.stdout.write(f"{shlex.join(argv)}\n")
            continue
        for folder in arguments.environ.values():
            Path(folder).mkdir(parents=True, exist_ok=True)
        if arguments.out:
            arguments.out.mkdir(parents=True, exist_ok=True)
        environ = os.environ | arguments.environ | {"PATH": _path()}
        try:
            status = subprocess.run(argv, env=environ, check=False).returncode
        except FileNotFoundError:
            return _refuse(f"no {argv[0]} here: {PROGRAMS.get(argv[0], 'load its module')}")
        if status != 0:
            return _refuse(" ".join((f"{' '.join(argv[:2])} failed; what it said is above", more)))
    return 0


def _needed(engine: str, name: str) -> tuple[str, ...]:
    if engine != "apptainer":
        return (engine,)
    return tuple(PROGRAMS) if name == "eval-cpu" else ("apptainer", "mksquashfs", "newuidmap")


def _have_wheels(arguments: argparse.Namespace) -> bool:
    """Have torch of that kind and what it needs, from pip's own sources or else PyTorch's."""
    folder, recipe = arguments.wheels, recipes.RECIPES[arguments.name]
    if folder.exists():
        return True
    began = time.monotonic()
    partial = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    pip += ["--dest", str(partial), "--only-binary=:all:", "--python-version", recipe.python]
    pip += ["--constraint", str(HERE.parent / "constraints.txt")]
    pip += [f"torch=={pinned('torch')}+{recipe.wheels}", "numpy", "ninja", "einops"]
    for more in ([], ["--extra-index-url", f"{TORCH_INDEX}/{recipe.wheels}"]):
        if subprocess.run([*pip, *more], check=False).returncode == 0:
            partial.rename(folder)
            _say(f"wheels: {time.monotonic() - began:.0f} s")
            return True
    _refuse("pip could not download the wheels; what it said is above")
    return False


def _mirror() -> str | None:
    """Where this machine's own packages of Debian's release come from."""
    if not shutil.which("apt-get"):
        return None
    ask = ["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)"]
    said = subprocess.run(ask, capture_output=True, text=True, check=False).stdout
    pairs = [line.split() for line in said.splitlines()]
    return next((pair[1] for pair in pairs if pair[:1] == ["bookworm"]), None)


def _find(program: str) -> str | None:
    return shutil.which(program, path=_path())


def _path() -> str:
    """PATH with the folders of administrators' programs: debootstrap lies there."""
    return os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"


def _refuse(why: str) -> int:
    _say(why)
    return 1


def _say(line: str) -> None:
    sys.stderr.write(f"image: {line}\n")


if __name__ == "__main__":
    sys.exit(main())

"""The environment of a clone: for which site it is made, where it lies, and whether it is whole."""

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from builders.required import lacking

from pike_hpc.bootstrap.install import (
    COMPILERS,
    MODULES,
    STAMP,
    fingerprint,
    is_anothers,
    lost,
    place,
    promised,
    what_is_missing,
)
from pike_hpc.proposers.rules import toolchain

ROOT = Path(__file__).resolve().parents[2]
NERSC = {"NERSC_HOST": "perlmutter"}

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """As much of a clone as is needed until something would be installed, which then fails."""
    folder = tmp_path / "clone"
    (folder / "pike_hpc").mkdir(parents=True)
    for name in ("Makefile", "pike_hpc/__init__.py"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "pike_hpc/bootstrap", folder / "pike_hpc/bootstrap")
    shutil.copytree(ROOT / "site_configs", folder / "site_configs")
    return folder


@pytest.fixture
def make(clone: Path) -> Run:
    """Run make there, on a PATH with nothing but what is needed."""
    if not shutil.which("make"):
        lacking("make", "there is no make")
    bin_dir = clone.parent / "bin"
    bin_dir.mkdir()
    for name in ("make", "sh"):
        (bin_dir / name).symlink_to(shutil.which(name) or "/")

    def run(
        *arguments: str, blocks: str = "unlimited", **environ: str
    ) -> subprocess.CompletedProcess[str]:
        limited = ["sh", "-c", f'ulimit -f {blocks} && exec "$@"', "sh"]  # of each file written
        return subprocess.run(
            [*limited, "make", f"PYTHON={sys.executable}", *arguments],
            cwd=clone,
            env={
                "PATH": str(bin_dir),
                "HOME": str(clone.parent / "home"),
                "SCRATCH": str(clone.parent / "scratch"),
                "PIP_NO_INDEX": "1",
                "PIP_CONFIG_FILE": os.devnull,
                **environ,
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def with_sbatch(clone: Path) -> None:
    (clone.parent / "bin/sbatch").write_text("#!/bin/sh\n")
    (clone.parent / "bin/sbatch").chmod(0o755)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["submit", "SITE=local", "DRYRUN=1"], "no variable DRYRUN=; did you mean DRY_RUN?"),
        (["submit", "site=local"], "no variable site=; did you mean SITE?"),
        (["report", "RUNS=x y=z"], "no variable RUNS=; did you mean RUN?"),
        *(([t], f"make {t} RUN=DIR") for t in ("status", "resume", "cancel", "report")),
    ],
)
def test_what_make_does_not_know_is_said_before_anything_is_done(
    make: Run, clone: Path, words: list[str], said: str
) -> None:
    done = make(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""
    assert not (clone / ".venv").exists()


def test_a_value_may_hold_what_looks_like_a_variable(make: Run) -> None:
    done = make("--dry-run", "submit", "SITE=local", "RUN=a b=c")
    assert '--run "a b=c"' in done.stdout, done.stderr


@pytest.mark.parametrize("target", ["setup", "submit"])
def test_a_login_node_gets_nothing_until_a_site_is_named(
    make: Run, clone: Path, target: str
) -> None:
    done = make(target, "WORKFLOW=mine.yaml", "ACCOUNT=it's", **NERSC)
    assert "Error 2" in done.stderr  # install's own; that of make is 2 for any
    assert "this is a login node of perlmutter, and no site was named" in done.stderr
    (line,) = re.findall(r"next: +(.*)", done.stderr)
    assert line.startswith(f"make {target} ")
    assert {"WORKFLOW=mine.yaml", "ACCOUNT=it's", "SITE=perlmutter"} <= set(line.split())
    assert not (clone / ".venv").exists()
    assert "could not be made" not in done.stderr


@pytest.mark.parametrize("target", ["submit", "doctor"])
def test_what_is_typed_reaches_the_command_as_it_was_typed(make: Run, target: str) -> None:
    typed = {"WORKFLOW": "my work/w (1).yaml", "SITE": "there; false", "ACCOUNT": "a & b"}
    done = make("-n", target, *(f"{name}={value}" for name, value in typed.items()))
    (line,) = [x for x in done.stdout.replace("\\\n", "").splitlines() if f"pike-hpc {target}" in x]
    words = shlex.split(line)
    for name, value in typed.items():
        assert words[words.index(f"--{name.lower()}") + 1] == value


def test_doctor_sets_up_for_the_site_that_it_will_try(make: Run, clone: Path) -> None:
    done = make("doctor", **NERSC)
    assert "the environment is that of SITE=perlmutter" in done.stderr
    assert (clone / ".venv").readlink().parent == clone.parent / "scratch/pike-hpc"


@pytest.mark.parametrize("site", ["local", "perlmutter"])
def test_a_site_that_is_named_is_installed_for(make: Run, clone: Path, site: str) -> None:
    with_sbatch(clone)
    done = make("submit", f"SITE={site}", **NERSC)
    assert "login node" not in done.stderr
    assert "sbatch" not in done.stderr
    assert "could not be made" in done.stderr  # for want of a setup.cfg
    assert (clone / ".venv").is_symlink() == (site == "perlmutter")


def test_the_sites_of_another_folder_count_instead(make: Run, clone: Path) -> None:
    sites = clone.parent / "sites"
    sites.mkdir()
    (sites / "ours.yaml").write_text("identify:\n  env: {OURS: yes}\n")
    done = make("setup", PIKE_SITES_DIR=str(sites), OURS="yes", **NERSC)
    assert "next:  make setup" in done.stderr
    assert "SITE=ours" in done.stderr


def test_where_there_is_slurm_it_is_said_once_that_all_runs_here(make: Run, clone: Path) -> None:
    assert "this very machine" not in make("submit").stderr
    with_sbatch(clone)
    done = make("submit")
    said = done.stderr.splitlines()
    (at,) = [i for i, line in enumerate(said) if "this very machine" in line]
    assert said[at + 1].startswith("  valid: devcluster, lawrencium, perlmutter;")
    assert re.search(r"next: +make submit .*SITE=NAME,", said[at + 2])
    assert "could not be made" in done.stderr  # it went on


def test_an_environment_in_the_clone_makes_way_for_a_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, elsewhere = tmp_path / ".venv", tmp_path / "work/venv-1"
    (folder / "lib").mkdir(parents=True)
    (folder / f"{STAMP}local").touch()
    assert not is_anothers(folder, elsewhere)
    place(folder, elsewhere)
    assert folder.readlink() == elsewhere
    assert list(tmp_path.glob(".venv*")) == [folder]  # nothing is kept beside it
    said = capsys.readouterr().err
    assert f"removing {folder}" in said
    assert str(elsewhere) in said


def test_an_environment_that_is_not_ours_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / ".venv"
    (folder / "lib").mkdir(parents=True)
    assert is_anothers(folder, tmp_path / "work/venv-1")
    assert (folder / "lib").is_dir()
    assert not (tmp_path / "work").exists()
    assert f"next:  rm -r {folder}" in capsys.readouterr().err


def test_a_folder_that_is_not_ours_ends_the_command(make: Run, clone: Path) -> None:
    (clone / ".venv").mkdir()
    done = make("submit", "SITE=perlmutter")
    assert "Error 2" in done.stderr
    assert "could not be made" not in done.stderr
    assert not (clone / ".venv").is_symlink()


def test_a_link_is_set_to_the_site_and_then_left(tmp_path: Path) -> None:
    folder, before, elsewhere = tmp_path / ".venv", tmp_path / "other", tmp_path / "work/venv-1"
    before.mkdir()
    (before / "kept").touch()
    folder.symlink_to(before)
    assert not is_anothers(folder, elsewhere)
    place(folder, elsewhere)
    assert folder.readlink() == elsewhere
    assert (before / "kept").exists()
    age = folder.lstat().st_ctime_ns
    place(folder, elsewhere)
    assert folder.lstat().st_ctime_ns == age


def test_a_folder_that_cannot_be_made_is_one_message(make: Run, clone: Path) -> None:
    (clone.parent / "scratch").write_text("a file")
    done = make("setup", "SITE=perlmutter")
    assert "the environment could not be made" in done.stderr
    assert "Traceback" not in done.stderr


def test_modules_are_what_setup_cfg_requires() -> None:
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "setup.cfg")
    base, local = config["options"]["install_requires"], config["options.extras_require"]["local"]
    imported = {"pyyaml": "yaml"}
    for extra, text in (("", f"pike_hpc\n{base}"), ("local", local)):
        names = re.findall(r"(?m)^[\w-]+", text)
        assert list(MODULES[extra]) == [imported.get(name, name) for name in names]


def test_a_stamp_promises_its_modules(tmp_path: Path) -> None:
    assert promised(tmp_path) == []
    (tmp_path / f"{STAMP}base").touch()
    assert promised(tmp_path) == [*MODULES[""]]
    (tmp_path / f"{STAMP}local-dev").touch()
    assert promised(tmp_path) == [*MODULES[""], *MODULES["local"]]


def make_environment(folder: Path) -> None:
    """One with modules, and a pip, that are empty but there."""
    venv.create(folder)
    (packages,) = folder.glob("lib/python3*/site-packages")
    for name in ["pip", *(module for modules in MODULES.values() for module in modules)]:
        (packages / name).mkdir()
        (packages / name / "__init__.py").touch()


def install_by_hand(clone: Path, environment: Path, extras: str) -> Path:
    """What a finished installation leaves; returns its stamp."""
    make_environment(environment)
    for name in ("setup.cfg", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, clone / name)
    stamp = environment / f"{STAMP}{extras}"
    stamp.write_text(fingerprint())
    return stamp


def module(environment: Path, name: str) -> Path:
    (file,) = environment.glob(f"lib/python3*/site-packages/{name}/__init__.py")
    return file


def test_what_an_environment_has_lost_is_seen(tmp_path: Path) -> None:
    make_environment(tmp_path)
    assert lost(tmp_path, MODULES[""]) == []
    module(tmp_path, "pandas").unlink()  # as a purge does, which leaves folders
    shutil.rmtree(module(tmp_path, "yaml").parent)
    assert lost(tmp_path, MODULES[""]) == ["yaml", "pandas"]
    (tmp_path / "bin/python").unlink()
    assert lost(tmp_path, MODULES[""]) == ["python"]
    (tmp_path / "bin/python").symlink_to(shutil.which("false") or "/")
    assert lost(tmp_path, MODULES[""]) == ["python"]


def test_the_clone_itself_is_no_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_environment(tmp_path)
    shutil.rmtree(module(tmp_path, "pike_hpc").parent)
    monkeypatch.chdir(ROOT)  # where make runs
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert lost(tmp_path, ["pike_hpc"]) == ["pike_hpc"]


@pytest.mark.parametrize(
    ("target", "extras"),
    [("setup", "local"), ("setup SITE=local", "local"), ("setup-dev", "local-dev")],
)
def test_torch_is_for_this_machine(make: Run, clone: Path, target: str, extras: str) -> None:
    install_by_hand(clone, clone / ".venv", extras)
    done = make(*target.split(), **({} if target == "setup" else NERSC))
    assert (done.returncode, done.stderr) == (0, "")  # that is the stamp it asks for


def test_a_stamp_is_believed_only_while_the_modules_are_there(make: Run, clone: Path) -> None:
    assert make(
        "setup", "SITE=perlmutter"
    ).returncode  # for want of a setup.cfg; but it has a place
    environment = (clone / ".venv").readlink()
    stamp = install_by_hand(clone, environment, "base")
    done = make("setup", "SITE=perlmutter")
    assert (done.returncode, done.stderr) == (0, "")

    module(environment, "pandas").unlink()
    done = make("setup", "SITE=perlmutter", blocks="1024")  # no room for pip: it ends there
    assert "gone from the environment, as where unread files are purged: pandas" in done.stderr
    assert f"making {environment.name}" in done.stderr
    assert "could not be made" in done.stderr
    assert "Traceback" not in done.stderr
    left = {path.name for path in environment.rglob("*")}
    assert not left & {stamp.name, "yaml"}  # nothing old that pip would take for whole


def test_what_is_missing_is_named_with_what_it_costs(tmp_path: Path) -> None:
    said = what_is_missing(lambda _: None, tmp_path)
    assert [line.partition(" (")[0] for line in said] == [
        "no C++ compiler",
        "no Python headers",
        "no bubblewrap",
    ]
    (tmp_path / "Python.h").touch()
    assert what_is_missing(lambda name: f"/usr/bin/{name}", tmp_path) == []


@pytest.mark.parametrize("compiler", toolchain.COMPILERS)
def test_any_compiler_that_rules_take_will_do(tmp_path: Path, compiler: str) -> None:
    (tmp_path / "Python.h").touch()
    there = {compiler: f"/usr/bin/{compiler}", "bwrap": "/usr/bin/bwrap"}
    assert what_is_missing(there.get, tmp_path) == []
    assert COMPILERS == toolchain.COMPILERS

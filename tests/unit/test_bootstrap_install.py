"""Where the environment of a clone lies."""

import string
from pathlib import Path

import pytest

from pike_hpc.bootstrap.install import COMPILERS, folder_at, what_is_missing
from pike_hpc.config.site import shipped_sites_dir
from pike_hpc.proposers.rules import toolchain

SITES = shipped_sites_dir()


def fill_in(text: str, **more: str) -> str:
    known = {"SCRATCH": "/pscratch/me", "USER": "me", "HOME": "/home/me", **more}
    return string.Template(text).safe_substitute(known)


@pytest.mark.parametrize(
    ("site", "work"),
    [
        ("perlmutter", "/pscratch/me/pike-hpc"),
        ("perlmutter:hbm80g", "/pscratch/me/pike-hpc"),
        ("lawrencium", "/global/scratch/users/me/pike-hpc"),
        ("devcluster", "/home/me/pike-hpc"),
    ],
)
def test_at_a_cluster_it_lies_below_the_sites_work_folder(site: str, work: str) -> None:
    folder = folder_at(site, SITES, fill_in)
    assert folder is not None
    assert str(folder.parent) == work
    assert folder.name.startswith("venv-")


@pytest.mark.parametrize("site", ["", "local", "no-such-site"])
def test_elsewhere_it_lies_beside_the_code(site: str) -> None:
    assert folder_at(site, SITES, fill_in) is None


def test_a_variable_that_is_not_set_is_left_to_the_one_who_says_so() -> None:
    assert folder_at("perlmutter", SITES, str) is None


def test_the_users_own_site_file_wins(tmp_path: Path) -> None:
    own = tmp_path / "pike-hpc/sites/perlmutter.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("paths:\n  work: /cfs/m1/pike  # kept\n")
    folder = folder_at(
        "perlmutter", SITES, lambda text: fill_in(text, XDG_CONFIG_HOME=str(tmp_path))
    )
    assert folder is not None
    assert folder.parent == Path("/cfs/m1/pike")


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

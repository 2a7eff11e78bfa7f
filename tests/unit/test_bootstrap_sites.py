"""What is known of a site before anything is installed: its login nodes, where it works."""

import string
from pathlib import Path

import pytest

from pike_hpc.bootstrap.sites import clusters, folder_at, recognise
from pike_hpc.config import load_site, recognise_site
from pike_hpc.config.site import shipped_sites_dir, site_names

SITES = shipped_sites_dir()


def fill_in(text: str, **more: str) -> str:
    known = {"SCRATCH": "/pscratch/me", "USER": "me", "HOME": "/home/me", **more}
    return string.Template(text).safe_substitute(known)


@pytest.mark.parametrize("name", site_names(SITES, None))
def test_every_shipped_site_is_recognised_as_it_is_later(name: str) -> None:
    environ = dict(load_site(name, sites_dir=SITES).identify.env)
    assert recognise(environ, SITES) == (name if environ else "")
    assert (recognise(environ, SITES) or None) == recognise_site(environ, sites_dir=SITES)


@pytest.mark.parametrize(
    "identify",
    [
        "identify:\n  env: {HOST_A: one, HOST_B: 'two words'}  # both\n",
        "identify: {env: {HOST_A: one, HOST_B: two words}}\n",
        'identify:\n  env:\n    HOST_A: "one"\n\n    # and\n    HOST_B: two words  # b\n',
        "identify:\n# env: {NOT: this}\n  env:\n    'HOST_A': one\n    HOST_B: two words\n",
    ],
)
def test_however_a_site_says_what_tells_it(tmp_path: Path, identify: str) -> None:
    text = f"schema_version: 1\nname: yours\n{identify}scheduler: slurm\npaths: {{work: /w}}\n"
    (tmp_path / "yours.yaml").write_text(text)
    (tmp_path / "template.yaml").write_text(text)
    both = {"HOST_A": "one", "HOST_B": "two words", "scheduler": "slurm"}
    for environ in (both, {**both, "HOST_B": "two"}, {"HOST_A": "one"}, {}):
        later = recognise_site(environ, sites_dir=tmp_path)
        assert (recognise(environ, tmp_path) or None) == later
        assert later == ("yours" if environ == both else None)


def test_a_site_file_that_cannot_be_read_recognises_nothing(tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_bytes(b"# caf\xe9\nname: [old\n  work: }\nidentify:\n")
    assert recognise({"HOST_A": "one"}, tmp_path) == ""


def test_clusters_are_the_shipped_and_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "pike-hpc/sites").mkdir(parents=True)
    (tmp_path / "pike-hpc/sites/ours.yaml").touch()
    named = clusters(SITES, lambda text: fill_in(text, XDG_CONFIG_HOME=str(tmp_path)))
    assert named == sorted({*site_names(SITES, None), "ours"} - {"local"})


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

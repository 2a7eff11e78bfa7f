"""A site file, the shipped ones, and the user's own upon them."""

import dataclasses
import re
import typing
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from pike_hpc.config import Site, load_site, recognise_site, site_names, site_variants
from pike_hpc.config.site import MAX_SHARDS, read_site, shipped_sites_dir, site_node
from pike_hpc.mailbox import shards
from pike_hpc.records import UsageError

SMALLEST = "schema_version: 1\nname: small\nscheduler: local\npaths: {work: runs}\n"
SITES = shipped_sites_dir()


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.yaml"
    file.write_text(text)
    return file


def refused(tmp_path: Path, text: str) -> UsageError:
    write(tmp_path, "small", text)
    with pytest.raises(UsageError) as caught:
        load_site("small", sites_dir=tmp_path)
    return caught.value


def test_what_is_optional_has_a_default(tmp_path: Path) -> None:
    write(tmp_path, "small", SMALLEST)
    site = load_site("small", sites_dir=tmp_path)
    assert (site.container.engine, site.agent.where, site.account) == ("auto", "shell", None)
    assert site.runs_dir == Path("runs")


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("schema_version: 1\nname: small\nscheduler: local\n", 1, "missing key 'paths'"),
        ("schema_version: 1\nname: small\nscheduler: local\npaths: {}\n", 4, "'paths.work'"),
        (SMALLEST.replace("local", "pbs"), 3, "'pbs' is not valid"),
        (SMALLEST.replace("local", "off"), 3, "expected text"),
        (SMALLEST.replace("1", "9"), 1, "needs a newer pike-hpc"),
        (SMALLEST + "worker_job: {walltime_minutes: 12:30:00}\n", 5, "base 60"),
        (SMALLEST + "worker_job: {walltime_minutes: 0}\n", 5, "less than 1"),
        (SMALLEST + "worker_job: {gpu: 4}\n", 5, "unknown key 'worker_job.gpu'"),
        (SMALLEST + "container: {engine: singularity}\n", 5, "'singularity' is not valid"),
        (SMALLEST + "container: {engine: apptainer}\n", 5, "image is required"),
        (SMALLEST + "agent: {where: array}\n", 5, "needs scheduler slurm"),
        (SMALLEST + "agent: {at_once: 0}\n", 5, "less than 1"),
        (SMALLEST + "setup: module load python\n", 5, "expected a list"),
        (SMALLEST + "account: 1234\n", 5, "expected text"),
        (SMALLEST + "sources: {worker_job.qso: x}\n", 5, "no key 'worker_job.qso'"),
        (SMALLEST + "key_files: {OPENAI_API_KEY: /k}\n", 5, "your own site file"),
    ],
)
def test_a_wrong_site_is_one_message(tmp_path: Path, text: str, line: int, says: str) -> None:
    error = refused(tmp_path, text)
    assert says in error.what
    assert error.where == f"{tmp_path}/small.yaml:{line}"


def test_an_unknown_site_names_the_valid_ones() -> None:
    with pytest.raises(UsageError) as caught:
        load_site("perlmuter", sites_dir=SITES)
    assert "perlmutter" in (caught.value.valid or "")
    assert caught.value.fix == "did you mean 'perlmutter'?"
    assert "template" not in (caught.value.valid or "")


def test_a_path_to_a_file_is_a_site_too(tmp_path: Path) -> None:
    file = write(tmp_path / "elsewhere", "small", SMALLEST)
    assert load_site(str(file), sites_dir=SITES).name == "small"


def test_the_users_file_completes_the_shipped_one(tmp_path: Path) -> None:
    write(tmp_path / "shipped", "small", SMALLEST + "worker_job: {cpus: 4, qos: a}\n")
    own = write(tmp_path / "user/sites", "small", "account: m1\nworker_job: {qos: b}\n")
    sources: dict[str, str] = {}
    node = site_node("small", sites_dir=tmp_path / "shipped", user_dir=tmp_path / "user")
    site = read_site(node, sources)
    assert (site.account, site.worker_job.cpus, site.worker_job.qos) == ("m1", 4, "b")
    assert sources["worker_job.qos"] == f"{own}:2"
    assert sources["worker_job.cpus"] == f"{tmp_path}/shipped/small.yaml:5"


def test_a_user_may_have_a_site_of_their_own_with_keys_in_files(tmp_path: Path) -> None:
    write(tmp_path / "user/sites", "mine", SMALLEST + "key_files: {OPENAI_API_KEY: /k}\n")
    assert "mine" in site_names(SITES, tmp_path / "user")
    site = load_site("mine", sites_dir=SITES, user_dir=tmp_path / "user")
    assert site.key_files == {"OPENAI_API_KEY": "/k"}


def test_a_login_node_is_recognised() -> None:
    assert recognise_site({"NERSC_HOST": "perlmutter"}, sites_dir=SITES) == "perlmutter"
    assert recognise_site({"NERSC_HOST": "cori"}, sites_dir=SITES) is None
    assert recognise_site({}, sites_dir=SITES) is None


SHIPPED = (*site_names(SITES, None), "template")


def shipped(name: str, sources: dict[str, str]) -> Site:
    return read_site(
        site_node(str(SITES / f"{name}.yaml"), sites_dir=SITES, user_dir=None), sources
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_site_reads_and_is_named_as_its_file(name: str) -> None:
    site = shipped(name, {})
    assert site.name == name
    assert site.account is None
    assert site.key_files == {}


@pytest.mark.parametrize("name", sorted(set(SHIPPED) - {"local"}))
def test_every_value_of_a_shipped_cluster_says_where_it_is_documented(name: str) -> None:
    sources: dict[str, str] = {}
    documented: Mapping[str, str] = shipped(name, sources).sources
    written = {
        k for k, v in sources.items() if v != "default" and not k.startswith(("sources.", "site."))
    }
    if name == "template":
        written = {"scheduler", "paths.work"}
    missing = {
        k
        for k in written
        if k not in documented and not any(k.startswith(f"{d}.") for d in documented)
    }
    assert not missing


@pytest.mark.parametrize(
    ("name", "variant"),
    [(n, v) for n in SHIPPED for v in site_variants(str(SITES / f"{n}.yaml"), sites_dir=SITES)],
)
def test_every_value_of_a_shipped_variant_says_so_itself(name: str, variant: str) -> None:
    """What the site says of its own value need not be so of the variant's."""
    written = yaml.safe_load((SITES / f"{name}.yaml").read_text("utf-8"))["variants"][variant]
    said = written.pop("sources")
    sources = load_site(f"{SITES}/{name}.yaml:{variant}", sites_dir=SITES).sources
    nearest = set()
    for key in _leaves(written):
        told = [k for k in sources if key == k or key.startswith(f"{k}.")]
        nearest.add(max(told, key=len, default=key))
    assert nearest == set(said)


def _leaves(written: Mapping[str, object], prefix: str = "") -> list[str]:
    found = []
    for key, value in written.items():
        inner = _leaves(value, f"{prefix}{key}.") if isinstance(value, Mapping) else []
        found += inner or [f"{prefix}{key}"]
    return found


def test_the_template_explains_every_key_of_a_site() -> None:
    """By words behind it, or in the lines right above."""
    explained = set()
    section, above = "", ""
    for line in (SITES / "template.yaml").read_text("utf-8").splitlines():
        key = re.match(r"(?:# )?(  )?([a-z_]+):", line)
        if key is None:
            above = line.strip()
            continue
        section = section if key[1] else key[2]
        if line.count("#") > line.startswith("#") or above.startswith("#"):
            explained.add(f"{section}.{key[2]}" if key[1] else key[2])
        above = ""
    assert set(_keys(Site)) - explained == set()


def test_a_site_may_ask_for_as_many_shards_as_a_mailbox_takes(tmp_path: Path) -> None:
    write(tmp_path, "small", f"{SMALLEST}mailbox: {{shards: {MAX_SHARDS}}}\n")
    site = load_site("small", sites_dir=tmp_path)
    assert site.mailbox.shards == MAX_SHARDS == shards.MAX_SHARDS
    for wrong in (0, MAX_SHARDS + 1):
        error = refused(tmp_path, f"{SMALLEST}mailbox: {{shards: {wrong}}}\n")
        assert "mailbox.shards" in str(error)


def _keys(cls: type, prefix: str = "") -> list[str]:
    hints = typing.get_type_hints(cls)
    found = []
    for field in dataclasses.fields(cls):
        found.append(f"{prefix}{field.name}")
        if dataclasses.is_dataclass(hints[field.name]):
            found += _keys(hints[field.name], f"{prefix}{field.name}.")
    return found


VARIED = SMALLEST + (
    "worker_job: {cpus: 4, qos: a}\n"
    "variants:\n  big: {worker_job: {cpus: 64}}\n  odd: {worker_job: {cpu: 1}}\n"
    "  strange: {sources: {worker_job.cpu: a page}}\n"
)


def test_a_variant_is_the_site_with_its_own_values(tmp_path: Path) -> None:
    write(tmp_path, "small", VARIED)
    assert site_variants("small", sites_dir=tmp_path) == ("big", "odd", "strange")
    assert load_site("small", sites_dir=tmp_path).worker_job.cpus == 4
    big = load_site("small:big", sites_dir=tmp_path)
    assert (big.name, big.worker_job.cpus, big.worker_job.qos) == ("small", 64, "a")
    assert load_site(f"{tmp_path}/small.yaml:big", sites_dir=SITES) == big


def test_a_variant_says_where_its_own_values_are_documented(tmp_path: Path) -> None:
    sources = "sources: {worker_job: a page, worker_job.cpus: b page}\n"
    own = "cpus: 64}, sources: {worker_job.cpus: unverified}"
    write(tmp_path, "small", VARIED.replace("cpus: 64}", own) + sources)
    of_the_site = {"worker_job": "a page", "worker_job.cpus": "b page"}
    assert load_site("small", sites_dir=tmp_path).sources == of_the_site
    big = load_site("small:big", sites_dir=tmp_path)
    assert big.sources == of_the_site | {"worker_job.cpus": "unverified"}


def test_a_variant_may_be_the_users_own(tmp_path: Path) -> None:
    write(tmp_path / "shipped", "small", VARIED)
    write(tmp_path / "user/sites", "small", "variants: {mine: {worker_job: {cpus: 2}}}\n")
    places = {"sites_dir": tmp_path / "shipped", "user_dir": tmp_path / "user"}
    assert site_variants("small", **places) == ("big", "odd", "strange", "mine")
    assert load_site("small:mine", **places).worker_job.cpus == 2


@pytest.mark.parametrize(
    ("name", "says", "valid"),
    [
        ("small:bgi", "no variant 'bgi'", "small:big, small:odd, small:strange"),
        ("small:", "no variant ''", "small:big, small:odd, small:strange"),
        ("small:odd", "unknown key 'worker_job.cpu'", "gpus"),
        ("small:strange", "sources: no key 'worker_job.cpu'", ""),
    ],
)
def test_a_wrong_variant_is_one_message(tmp_path: Path, name: str, says: str, valid: str) -> None:
    write(tmp_path, "small", VARIED)
    with pytest.raises(UsageError) as caught:
        load_site(name, sites_dir=tmp_path)
    assert says in caught.value.what
    assert valid in (caught.value.valid or "")


def test_variants_are_names_with_mappings(tmp_path: Path) -> None:
    error = refused(tmp_path, SMALLEST + "variants: {big: 4}\n")
    assert "expected names with mappings" in error.what
    assert error.where == f"{tmp_path}/small.yaml:5"


@pytest.mark.parametrize("given", ["m1", "m1_g"])
def test_gpu_time_is_charged_to_the_account_with_the_suffix(tmp_path: Path, given: str) -> None:
    write(tmp_path, "small", SMALLEST + f"account: {given}\naccount_gpu_suffix: _g\n")
    site = load_site("small", sites_dir=tmp_path)
    assert (site.account_for("worker"), site.account_for("agent")) == ("m1_g", "m1")


def test_without_a_suffix_one_account_pays_for_all(tmp_path: Path) -> None:
    write(tmp_path, "small", SMALLEST + "account: m1_g\n")
    site = load_site("small", sites_dir=tmp_path)
    assert (site.account_for("worker"), site.account_for("agent")) == ("m1_g", "m1_g")
    write(tmp_path, "small", SMALLEST + "account_gpu_suffix: _g\n")
    assert load_site("small", sites_dir=tmp_path).account_for("worker") is None

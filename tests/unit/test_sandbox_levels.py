"""Levels follow from stopped attacks alone, and the page that explains them is complete."""

from pathlib import Path

import pytest

from pike_hpc.config import ContainerSpec
from pike_hpc.records import UsageError
from pike_hpc.sandbox import ATTACKS, LEVELS, Engine, HostFacts, choose, level, meets
from pike_hpc.sandbox.levels import STOPPED_AT

PAGE = Path(__file__).parents[2] / "docs" / "isolation.md"


def test_all_stopped_is_the_highest_level_and_none_the_lowest():
    assert level(dict.fromkeys(ATTACKS, True)) == "L4"
    assert level({}) == "L0"


@pytest.mark.parametrize("attack", ATTACKS)
def test_one_attack_that_succeeds_keeps_its_level_out_of_reach(attack):
    stopped = {**dict.fromkeys(ATTACKS, True), attack: False}
    needed = next(name for name, attacks in STOPPED_AT.items() if attack in attacks)
    assert level(stopped) == f"L{int(needed[1]) - 1}"
    del stopped[attack]
    assert level(stopped) == f"L{int(needed[1]) - 1}"


def test_meets_orders_levels():
    assert meets("L3", "L3")
    assert meets("L4", "L1")
    assert not meets("L1", "L3")
    with pytest.raises(UsageError, match="L9"):
        meets("L9", "L3")
    with pytest.raises(UsageError, match="none"):
        meets("L3", "none")


def test_the_page_has_a_row_for_every_attack():
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    table = {row[1].strip().strip("`"): row[2].strip() for row in rows}
    wanted = {attack: name for name, attacks in STOPPED_AT.items() for attack in attacks}
    assert {k: v for k, v in table.items() if v in LEVELS and k not in set(Engine)} == wanted


FACTS = HostFacts(uid=1000, gid=1000, kernel=(6, 1), python="/absent/python")


def test_an_unknown_engine_names_the_valid_ones():
    with pytest.raises(UsageError) as error:
        choose("bubblewarp", FACTS)
    for engine in (*Engine, "auto"):
        assert str(engine) in error.value.valid


@pytest.mark.parametrize("engine", ["podman-hpc", "docker", "podman", "apptainer"])
def test_an_engine_that_runs_an_image_says_that_it_wants_one(engine):
    with pytest.raises(UsageError, match=f"{engine} runs an image and none is named"):
        choose(engine, FACTS)


def test_an_engine_that_does_not_work_says_what_to_do():
    with pytest.raises(UsageError) as error:
        choose("unshare", FACTS)
    assert "/absent/python" in error.value.what
    assert "max_user_namespaces" in error.value.fix


def test_root_never_runs_bare_without_giving_its_uid_away():
    facts = HostFacts(uid=0, gid=0, kernel=(6, 1), python="/absent/python")
    with pytest.raises(UsageError, match="setpriv is absent"):
        choose("none", facts)


@pytest.mark.parametrize("engine", Engine)
def test_a_site_knows_which_engines_run_an_image(engine):
    assert ContainerSpec(engine=engine.value).runs_image == engine.runs_image
    assert not ContainerSpec(engine="auto").runs_image

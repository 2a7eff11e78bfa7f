"""Whatever a person writes: a configuration or one UsageError; and run.yaml keeps any value."""

import dataclasses
import string
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from pike_hpc.config import Resolved, from_run_yaml, to_run_yaml
from pike_hpc.config.layers import from_sets, merge
from pike_hpc.config.site import load_site, shipped_sites_dir
from pike_hpc.config.workflow import read_workflow
from pike_hpc.config.yaml_source import MapNode, parse_mapping
from pike_hpc.records import UsageError

BASE = "schema_version: 1\nname: x\ntasks: {suite: s}\n"
SITE = load_site("local", sites_dir=shipped_sites_dir())

PRINTABLE = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Cn"), exclude_characters="\ufeff"), max_size=30
)
KEYS = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=8)
SCALARS = st.one_of(
    PRINTABLE,
    st.integers(-(10**9), 10**9),
    st.booleans(),
    st.floats(-1e9, 1e9, allow_nan=False).map(lambda x: round(x, 3)),
)


def refusal(call: Callable[[], object]) -> UsageError | None:
    """The UsageError of a call, if it raised one; any other error fails the test."""
    try:
        call()
    except UsageError as error:
        return error
    return None


@settings(max_examples=300)
@given(st.text(max_size=200))
def test_any_text_is_a_configuration_or_one_usage_error(text: str) -> None:
    error = refusal(lambda: read_workflow(parse_mapping(text, "w.yaml"), {}))
    assert error is None or error.where is not None


PIECES = """budget models : { } [ ] max_usd no 12:30:00 - " ' 1 null # &a *a !!str > ? ,"""
FRAGMENTS = st.sampled_from([*PIECES.split(), ": ", "\n", "  ", "\t"])


@settings(max_examples=300)
@given(st.lists(FRAGMENTS, max_size=20).map("".join))
def test_broken_yaml_behind_a_good_start_is_one_usage_error(text: str) -> None:
    error = refusal(lambda: read_workflow(parse_mapping(BASE + text, "w.yaml"), {}))
    assert error is None or (error.where or "").startswith("w.yaml")


@given(st.dictionaries(KEYS, SCALARS, max_size=5), st.lists(PRINTABLE, max_size=3))
def test_run_yaml_keeps_any_value(options: dict[str, object], places: list[str]) -> None:
    workflow = read_workflow(parse_mapping(BASE, "w.yaml"), {})
    search = dataclasses.replace(workflow.search, options=options)  # type: ignore[arg-type]
    resolved = Resolved(
        workflow=dataclasses.replace(workflow, search=search),
        site=dataclasses.replace(SITE, setup=tuple(places)),
        sources={str(i): place for i, place in enumerate(places)},
    )
    again = from_run_yaml(to_run_yaml(resolved), "run.yaml")
    assert again == resolved
    assert {k: type(v) for k, v in again.workflow.search.options.items()} == {
        k: type(v) for k, v in options.items()
    }


MAPS = st.recursive(
    st.integers(0, 9), lambda inner: st.dictionaries(st.sampled_from("abc"), inner), max_leaves=8
).filter(lambda value: isinstance(value, dict))


def plain(node: object) -> object:
    return (
        {k: plain(v) for k, v in node.items.items()} if isinstance(node, MapNode) else node.text  # type: ignore[attr-defined]
    )


@given(MAPS, MAPS)
def test_merging_keeps_every_key_and_the_upper_value(
    low: dict[str, object], high: dict[str, object]
) -> None:
    merged = merge(parse_mapping(repr(low), "low"), parse_mapping(repr(high), "high"))

    def expected(a: object, b: object) -> object:
        if isinstance(a, dict) and isinstance(b, dict):
            return a | {k: expected(a.get(k), v) for k, v in b.items()}
        return b

    assert plain(merged) == plain(parse_mapping(repr(expected(low, high)), "both"))


@given(PRINTABLE)
def test_any_set_is_a_layer_or_one_usage_error(text: str) -> None:
    error = refusal(lambda: from_sets([text]))
    assert error is None or error.where == f"--set {text}"

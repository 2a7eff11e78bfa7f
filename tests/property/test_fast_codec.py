"""The fast reader accepts nothing that the strict rules refuse, and reads the rest alike."""

import copy

import pytest
from builders.small_run import rich_events
from hypothesis import given
from hypothesis import strategies as st

from pike_hpc.records import CodecError, decode, encode
from pike_hpc.records.codec import _decode
from pike_hpc.records.fast_codec import Unread, reader

EVENTS = rich_events()
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.just([]),
    st.just({}),
    st.just([1.0, 2.0, 3.0]),
    st.just(10**400),
    st.sampled_from(["fp32", "PASSED"]),
)


def places(value, path=()):
    """Every place in a JSON value, containers included."""
    yield path
    if isinstance(value, dict):
        for name, each in value.items():
            yield from places(each, (*path, name))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from places(each, (*path, number))


def changed(document, path, value, drop):
    """The document with another value at a place, or without it, or with one more beside it."""
    if not path:
        return value
    document = copy.deepcopy(document)
    parent = document
    for step in path[:-1]:
        parent = parent[step]
    if drop == "drop":
        del parent[path[-1]]
    elif drop == "add" and isinstance(parent, dict):
        parent["another"] = value
    else:
        parent[path[-1]] = value
    return document


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_what_was_written_is_read_fast(event):
    assert reader(type(event))(encode(event)) == event


@given(data=st.data(), value=ODD, drop=st.sampled_from(["replace", "drop", "add"]))
def test_both_readers_say_the_same(data, value, drop):
    event = data.draw(st.sampled_from(EVENTS))
    document = encode(event)
    path = data.draw(st.sampled_from(list(places(document))))
    document = changed(document, path, value, drop)
    kind = type(event)
    try:
        strict = repr(_decode(kind, document, "e"))
    except (CodecError, OverflowError) as error:
        strict = error
    try:
        assert repr(reader(kind)(document)) == strict
    except Unread:
        if isinstance(strict, CodecError):
            with pytest.raises(CodecError, match=r".*"):
                decode(kind, document)

"""What YAML would silently accept and change is refused, with its place."""

from pathlib import Path

import pytest

from pike_hpc.config.yaml_source import MapNode, ScalarNode, parse_mapping, parse_value, read_file
from pike_hpc.records import UsageError


def refused(text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        parse_mapping(text, "w.yaml")
    return caught.value


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, "empty"),
        ("# only a comment\n", 1, "empty"),
        ("- a\n- b\n", 1, "key: value"),
        ("just words\n", 1, "key: value"),
        ("a: 1\nb: 2\na: 3\n", 3, "duplicate key 'a', first at w.yaml:1"),
        ("a: 1\nb: {c: 1, c: 2}\n", 2, "duplicate key 'c'"),
        ("a: 1\nb:\n\tc: 2\n", 3, "not YAML"),
        ("a: [1, 2\nb: 3\n", 2, "not YAML"),
        ("a: &x 1\n", 1, "anchors"),
        ("a: 1\nb: *x\n", 2, "anchors"),
        ("a: 1\nb: !!int 2\n", 2, "tags"),
        ("a: !!python/object/apply:os.system [ls]\n", 1, "tags"),
        ("a: 1\n---\nb: 2\n", 2, "not YAML"),
        ("a: 1\n[b, c]: 2\n", 2, "a key is one word"),
        ("a: 1\nb: \x07\n", 2, "control character"),
    ],
)
def test_each_fault_is_one_message_with_its_line(text: str, line: int, says: str) -> None:
    error = refused(text)
    assert error.where == f"w.yaml:{line}"
    assert says in error.what


def test_a_tab_is_named() -> None:
    assert "spaces" in (refused("a:\n\tb: 1\n").fix or "")


def test_absurd_nesting_is_an_error_not_a_crash() -> None:
    assert "nested" in refused("a: " + "[" * 20_000).what


def test_nodes_know_their_lines_and_quotes() -> None:
    node = parse_mapping('a: 1\nb:\n  c: "2"\n', "w.yaml")
    inner = node.items["b"]
    assert isinstance(inner, MapNode)
    assert inner.items["c"] == ScalarNode(text="2", plain=False, where="w.yaml:3")
    assert node.items["a"] == ScalarNode(text="1", plain=True, where="w.yaml:1")


def test_a_single_value_keeps_the_place_it_was_given_at() -> None:
    assert parse_value("2", "--set a=2") == ScalarNode(text="2", plain=True, where="--set a=2")
    assert parse_value("", "--set a=") == ScalarNode(text="", plain=True, where="--set a=")
    with pytest.raises(UsageError) as caught:
        parse_value("[1", "--set a=[1")
    assert caught.value.where == "--set a=[1"


def test_an_unreadable_file_names_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "level3.yaml").write_text("a: 1\n")
    with pytest.raises(UsageError) as caught:
        read_file(tmp_path / "levl3.yaml")
    assert "No such file" in caught.value.what
    assert "level3.yaml" in (caught.value.valid or "")


def test_bytes_that_are_no_text_name_their_line(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_bytes(b"a: 1\nb: \xff\xfe\n")
    with pytest.raises(UsageError) as caught:
        read_file(file)
    assert caught.value.where == f"{file}:2"
    file.write_bytes(b"#" * 1_000_001)
    with pytest.raises(UsageError):
        read_file(file)

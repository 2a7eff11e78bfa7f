"""Calls that compile: told apart by what they compile, answered by what was built for them."""

import pytest

from pike_hpc.evaluate.runner.extensions import (
    Libraries,
    arguments_of,
    call_key,
    source_texts,
)

pytestmark = pytest.mark.torch


def inline(
    name,
    cpp_sources,
    cuda_sources=None,
    functions=None,
    extra_cflags=None,
    extra_include_paths=None,
    build_directory=None,
    verbose=False,
):
    """As torch's load_inline, in the part that matters."""
    cpp_sources.insert(0, "#include <torch/extension.h>")
    return cpp_sources


def from_files(name, sources, extra_cflags=None, build_directory=None):
    """As torch's load."""
    return sources


def key(*args, **kwargs):
    return call_key("load_inline", arguments_of(inline, args, kwargs))


def test_the_same_call_has_one_key_however_it_is_written():
    first = key("m", "int f();", functions=["f"])
    assert first == key(name="m", cpp_sources=["int f();"], cuda_sources=[], functions=["f"])
    assert first == key("m", "int f();", None, ["f"], verbose=True, build_directory="/elsewhere")


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"cpp_sources": "int g();"},
        {"cuda_sources": "int k;"},
        {"functions": ["g"]},
        {"extra_cflags": ["-O3"]},
    ],
)
def test_another_source_or_flag_has_another_key(change):
    base = {"name": "m", "cpp_sources": "int f();", "functions": ["f"]}
    assert key(**base) != key(**base | change)


def test_files_count_by_what_is_in_them(tmp_path):
    def of(folder, text):
        folder.mkdir(exist_ok=True)
        path = folder / "a.cpp"
        path.write_text(text)
        arguments = arguments_of(from_files, ("m", str(path)), {})
        assert source_texts("load", arguments) == [text]
        return call_key("load", arguments)

    assert of(tmp_path / "x", "1") == of(tmp_path / "y", "1") != of(tmp_path / "z", "2")


def test_a_callers_lists_stay_as_they_were():
    mine = ["int f();"]
    inline(**arguments_of(inline, ("m", mine), {}))
    assert mine == ["int f();"]


def test_what_was_not_built_ahead_is_built(tmp_path):
    arguments = arguments_of(inline, ("m", "int f();"), {})
    assert Libraries([], []).answer("load_inline", inline, arguments)[1] == "int f();"


def test_a_library_that_is_none_is_built_again(tmp_path, capsys):
    path = tmp_path / "broken.so"
    path.write_bytes(b"no library")
    arguments = arguments_of(inline, ("m", "int f();"), {})
    with path.open("rb") as file:
        listed = [{"key": call_key("load_inline", arguments), "name": "m", "is_module": True}]
        found = Libraries(listed, [file.fileno()])
        assert found.answer("load_inline", inline, arguments)[1] == "int f();"
    assert "ImportError" in capsys.readouterr().err

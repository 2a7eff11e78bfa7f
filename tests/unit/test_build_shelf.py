"""What is kept of builds, and what goes when room is short."""

import os
from dataclasses import replace
from pathlib import Path

from pike_hpc.evaluate.builder import Builder, Shelf, compiles
from pike_hpc.evaluate.built import Built, Kept, Library, open_built
from pike_hpc.records import EvalRequest, Task
from pike_hpc.sandbox import Engine, Toolchain

SHA_OF_X = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"


def built(folder: Path, size: int) -> Built:
    folder.mkdir()
    path = folder / "0.so"
    path.write_bytes(b"x" * size)
    made = Library(key="00", name="m", is_module=True, path=str(path), sha256=SHA_OF_X)
    return Built(libraries=(made,))


def test_those_used_longest_ago_go_first(tmp_path):
    shelf = Shelf(100)
    for name in ("a", "b"):
        assert shelf.put(name, built(tmp_path / name, 40), tmp_path / name) == []
    assert shelf.get("a") is not None
    assert shelf.put("c", built(tmp_path / "c", 40), tmp_path / "c") == [tmp_path / "b"]
    assert shelf.get("b") is None
    assert shelf.get("a") is not None


def test_what_is_larger_than_all_room_is_not_kept(tmp_path):
    shelf = Shelf(10)
    assert shelf.put("a", built(tmp_path / "a", 40), tmp_path / "a") == [tmp_path / "a"]
    assert shelf.get("a") is None


def test_a_library_that_is_not_what_was_built_is_left_out(tmp_path):
    made = built(tmp_path / "a", 1)
    listed, files, cached = open_built(made)
    assert [each["name"] for each in listed] == ["m"]
    assert len(files) == 1
    assert not cached
    Path(made.libraries[0].path).write_bytes(b"y")
    assert open_built(made) == ([], [], False)
    Path(made.libraries[0].path).unlink()
    assert open_built(made) == ([], [], False)


def test_a_cache_comes_after_the_libraries_if_it_is_whole(tmp_path):
    made = built(tmp_path / "a", 1)
    (tmp_path / "cache").write_bytes(b"x")
    made = replace(made, cache=Kept(path=str(tmp_path / "cache"), sha256=SHA_OF_X))
    _, files, cached = open_built(made)
    assert (len(files), cached) == (2, True)
    assert os.read(files[-1], 9) == b"x"
    (tmp_path / "cache").write_bytes(b"y")
    assert open_built(made)[2] is False


def test_what_comes_again_takes_the_place_of_its_forerunner(tmp_path):
    shelf = Shelf(100)
    for name in ("a", "b"):
        gone = shelf.put("key", built(tmp_path / name, 60), tmp_path / name)
    assert gone == [tmp_path / "a"]
    assert shelf.get("key").libraries[0].path == str(tmp_path / "b" / "0.so")


def test_programs_that_compile_nothing_need_no_build():
    assert compiles("from torch.utils.cpp_extension import load_inline")
    assert not compiles("import triton")


def test_a_build_whose_folder_is_gone_is_no_error(tmp_path):
    shelf = Shelf(100)
    made = built(tmp_path / "a", 60)
    (tmp_path / "a" / "0.so").unlink()
    (tmp_path / "a").rmdir()
    assert shelf.put("a", made, tmp_path / "a") == []
    assert shelf.get("a") == made


def test_a_cache_is_its_texts_alone_until_the_pool_is_closed(tmp_path):
    task = Task(suite="tests", id="1", name="n", source="")
    given = {"task": task, "device_kind": "cpu", "image_digest": "tests"}
    mine, other = (EvalRequest(candidate_source=text, **given) for text in ("a = 1", "a = 2"))
    scratch, left = tmp_path / "scratch", tmp_path / "left"
    left.write_bytes(b"x")
    with Builder(Engine.NONE, scratch=scratch, tools=Toolchain()) as builder:
        builder.keep(mine, left)
        assert not left.exists()
        assert builder.take(mine).cache.content() == b"x"
        builder.keep(other, left)  # it is not there any more
        assert builder.take(other).cache is None
    left.write_bytes(b"x")
    builder.keep(mine, left)
    assert list(scratch.iterdir()) == []

"""What is kept of builds, and what goes when room is short."""

from pathlib import Path

from pike_hpc.evaluate.builder import Shelf, compiles
from pike_hpc.evaluate.built import Built, Library, open_libraries

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
    listed, files = open_libraries(made.libraries)
    assert [each["name"] for each in listed] == ["m"]
    assert len(files) == 1
    Path(made.libraries[0].path).write_bytes(b"y")
    assert open_libraries(made.libraries) == ([], [])
    Path(made.libraries[0].path).unlink()
    assert open_libraries(made.libraries) == ([], [])


def test_programs_that_compile_nothing_need_no_build():
    assert compiles("from torch.utils.cpp_extension import load_inline")
    assert not compiles("import triton")

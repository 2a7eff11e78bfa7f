"""Compile caches packed and put back; what is too much, or nonsense, is left."""

import os
import zipfile

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.runner import CACHE_BYTES, CACHE_HEAD, compile_cache  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def scratch(tmp_path):
    return tmp_path / "scratch"


@pytest.fixture
def room():
    fd = os.memfd_create("room")
    os.ftruncate(fd, CACHE_BYTES)
    yield fd
    os.close(fd)


def content(fd):
    (size,) = CACHE_HEAD.unpack(os.pread(fd, CACHE_HEAD.size, 0))
    return os.pread(fd, size, CACHE_HEAD.size)


def archived(packed, path):
    path.write_bytes(packed)
    return os.open(path, os.O_RDONLY)


def fill(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text)


MADE = {
    "inductor/ab/kernel.so": b"\x7fELF" * 1000,
    "inductor/fxgraph/x/y": b"graph",
    "triton/K/kernel.cubin": b"cubin",
}


def test_what_is_packed_is_put_back(scratch, room, tmp_path):
    fill(scratch, {**MADE, "program-x/candidate.py": b"not a cache"})
    compile_cache.pack(room, scratch)
    there = tmp_path / "elsewhere"
    compile_cache.unpack(archived(content(room), tmp_path / "archive"), there)
    found = {str(p.relative_to(there)): p for p in there.rglob("*") if p.is_file()}
    assert {name: path.read_bytes() for name, path in found.items()} == MADE


def test_who_compiled_nothing_leaves_nothing(scratch, room):
    compile_cache.pack(room, scratch)
    (scratch / "inductor").mkdir(parents=True)
    compile_cache.pack(room, scratch)
    assert content(room) == b""


@pytest.mark.parametrize("size", [CACHE_BYTES + 1, 5 * CACHE_BYTES])
def test_what_has_no_room_is_not_kept(scratch, room, size):
    (scratch / "inductor").mkdir(parents=True)
    with (scratch / "inductor/large").open("wb") as file:
        if size < 4 * CACHE_BYTES:
            file.write(os.urandom(size))  # packed it is no smaller
        else:
            file.truncate(size)
    compile_cache.pack(room, scratch)
    assert content(room) == b""


def test_links_are_left_out(scratch, room, tmp_path):
    (tmp_path / "secret").write_bytes(b"secret")
    (scratch / "triton").mkdir(parents=True)
    (scratch / "triton/link").symlink_to(tmp_path / "secret")
    compile_cache.pack(room, scratch)
    assert content(room) == b""


def test_an_archive_writes_nowhere_else(scratch, tmp_path):
    path = tmp_path / "archive"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("inductor/../../out", b"x")
        archive.writestr("/abs", b"x")
    compile_cache.unpack(os.open(path, os.O_RDONLY), scratch)
    written = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert written == {"archive", "scratch/inductor/out", "scratch/abs"}


def test_nonsense_is_said(scratch, tmp_path):
    with pytest.raises(zipfile.BadZipFile):
        compile_cache.unpack(archived(b"nonsense", tmp_path / "archive"), scratch)


def test_half_an_archive_leaves_nothing(scratch, tmp_path):
    path = tmp_path / "archive"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("inductor/whole", b"x" * 1000)
        archive.writestr("triton/damaged", b"y" * 1000)
    path.write_bytes(path.read_bytes().replace(b"y" * 1000, b"z" * 1000))
    with pytest.raises(zipfile.BadZipFile):
        compile_cache.unpack(os.open(path, os.O_RDONLY), scratch)
    assert not [p for p in scratch.rglob("*") if p.is_file()]

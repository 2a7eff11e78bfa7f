"""Slots, trees and buffers: what both sides of the doorbell agree on."""

import fcntl
import mmap
import os

import pytest

from pike_hpc.evaluate.buffers import SharedBuffer, sealed_file
from pike_hpc.evaluate.layout import ALIGNMENT, NotATree, buffer_bytes, describe, lay_out


def test_slots_lie_one_after_the_other_aligned():
    slots = lay_out([("a", "float32", (3, 5)), ("b", "bool", (7,)), ("c", "int64", ())])
    assert [s.offset for s in slots] == [0, ALIGNMENT, 2 * ALIGNMENT]
    assert [s.size_bytes for s in slots] == [60, 7, 8]
    assert buffer_bytes(slots) == 2 * ALIGNMENT + 8
    assert buffer_bytes(()) > 0


def test_a_strange_type_is_an_error():
    with pytest.raises(KeyError):
        lay_out([("a", "quint8", (1,))])


class Tensor:
    pass


def test_a_tree_holds_structure_and_values():
    leaves: list[object] = []
    value = (Tensor(), [None, 3, "x"], {"k": Tensor()})
    tree = describe(value, lambda v: isinstance(v, Tensor), leaves, numbers_are_leaves=False)
    assert tree == [
        "tuple",
        [
            ["tensor", 0],
            ["list", [["value", None], ["value", 3], ["value", "x"]]],
            ["dict", {"k": ["tensor", 1]}],
        ],
    ]
    assert leaves == [value[0], value[2]["k"]]


def test_numbers_of_an_answer_are_leaves():
    leaves: list[object] = []
    tree = describe((1.5, None), lambda v: False, leaves, numbers_are_leaves=True)
    assert tree == ["tuple", [["tensor", 0], ["value", None]]]
    assert leaves == [1.5]


def test_what_is_no_tree_is_an_error():
    with pytest.raises(NotATree, match="object"):
        describe([object()], lambda v: False, [], numbers_are_leaves=False)


def test_nobody_can_change_the_size_of_a_shared_buffer():
    buffer = SharedBuffer("test", 4096)
    for size in (0, 8192):
        with pytest.raises(PermissionError):
            os.ftruncate(buffer.fd, size)
    buffer.map[5] = 7
    assert os.pread(buffer.fd, 1, 5) == b"\x07"
    buffer.close()
    buffer.close()


def test_weights_are_written_by_the_judge_alone_and_read_by_anyone():
    buffer = SharedBuffer("weights", 4096, ours_alone=True)
    buffer.map[5] = 7
    with pytest.raises(PermissionError):
        os.pwrite(buffer.fd, b"x", 0)
    with pytest.raises(PermissionError):
        mmap.mmap(buffer.fd, 4096)
    private = mmap.mmap(buffer.fd, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    private[5] = 9
    assert os.pread(buffer.fd, 1, 5) == b"\x07"


def test_a_buffer_that_nobody_holds_is_closed():
    buffer = SharedBuffer("test", 4096)
    fd = buffer.fd
    del buffer
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


def test_a_sealed_file_can_be_read_and_never_written():
    fd = sealed_file("test", b"content")
    with pytest.raises(PermissionError):
        os.write(fd, b"x")
    with pytest.raises(PermissionError):
        mmap.mmap(fd, 7)
    assert os.pread(fd, 100, 0) == b"content"
    assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    os.close(fd)

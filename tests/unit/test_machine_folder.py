"""The end of a folder, whatever somebody made in it."""

import contextlib
import errno
import os
import stat

import pytest

from pike_hpc.machine import remove_tree

DEEP = 3000
"""Beyond Python's limit on calls, a process's 1024 descriptors, and a path's 4096 bytes."""


def dig(folder, depth, name="d", mode=0o777):
    """Folders one in the other, each with a file."""
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=below))
        os.fchmod(fd, mode)
        os.close(fd)
        fd = below
    os.close(fd)


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "place"
    folder.mkdir()
    return folder


def test_a_folder_deeper_than_calls_may_nest_goes(place):
    dig(place, DEEP)
    dig(place, 5, name="beside")
    assert remove_tree(place)
    assert not place.exists()


def test_what_links_lead_to_stays(place, tmp_path):
    kept = tmp_path / "kept"
    (kept / "inside").mkdir(parents=True)
    (place / "link").symlink_to(kept)
    (place / "a" / "b").mkdir(parents=True)
    (place / "a" / "b" / "link").symlink_to(kept)
    assert remove_tree(place)
    assert (kept / "inside").is_dir()


def test_a_link_is_no_folder(place, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(place)
    assert not remove_tree(link)
    assert place.is_dir()


def test_a_link_that_a_folder_is_swapped_for_meanwhile_is_not_followed(
    place, tmp_path, monkeypatch
):
    kept = tmp_path / "kept"
    kept.write_text("mine")
    kept.chmod(0o640)
    (place / "a").mkdir()
    (place / "b").mkdir(mode=0)
    scandir = os.scandir

    def swapped(fd):
        with scandir(fd) as listing:
            found = list(listing)
        if (place / "a").is_dir():
            (place / "a").rmdir()
            (place / "a").symlink_to(kept)
        return contextlib.nullcontext(found)

    monkeypatch.setattr(os, "scandir", swapped)
    remove_tree(place)
    assert not (place / "b").exists()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o640
    assert kept.read_text() == "mine"


def test_a_file_system_that_fails_is_no_error(place, monkeypatch):
    (place / "a").mkdir()

    def fails(fd):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "scandir", fails)
    assert not remove_tree(place)
    assert (place / "a").is_dir()


def test_folders_that_were_closed_by_their_owner_go(place):
    dig(place, 3, mode=stat.S_IXUSR)
    (place / "a").mkdir(mode=0)
    assert remove_tree(place)


def test_names_and_kinds_do_not_matter(place):
    os.mkfifo(place / "pipe")
    (place / "a").mkdir()
    os.close(os.open(os.fsencode(place) + b"/a/\xff\n", os.O_CREAT))
    assert remove_tree(place)


def test_one_that_is_gone_is_gone(place):
    assert remove_tree(place / "never")

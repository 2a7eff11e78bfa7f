"""An archive of another version, or a damaged one, is told from a sound one."""

import h5py
import numpy as np
import pytest
from builders.small_run import (
    small_run,
)

from pike_hpc.archive import (
    canonical,
    read,
    rebuild,
    verify,
)
from pike_hpc.records import (
    PikeError,
    UsageError,
)


@pytest.fixture
def run(tmp_path):
    return small_run(tmp_path)


def as_version_1(path):
    """What version 1 wrote: no /elites, no column `retime`."""
    with h5py.File(path, "r+") as file:
        del file["elites"]
        rows = file["evaluations"][()]
        del file["evaluations"]
        names = [name for name in rows.dtype.names if name != "retime"]
        old = np.empty(len(rows), dtype=[(name, file_type(rows, name)) for name in names])
        for name in names:
            old[name] = rows[name]
        file.create_dataset("evaluations", data=old, fletcher32=True, chunks=True)
        file.attrs["format_version"] = 1


def file_type(rows, name):
    kind = rows.dtype[name]
    return h5py.string_dtype("utf-8", kind.itemsize) if kind.kind == "S" else kind


def test_an_archive_of_the_version_before_is_read_and_verified(run):
    path = rebuild(run)
    whole = read(path)
    as_version_1(path)
    assert verify(path) == ()
    assert read(path).tasks == whole.tasks
    with h5py.File(path, "r+") as file:
        file["proposals"].resize((2,))
    assert any("/proposals has 2 rows" in problem for problem in verify(path))


def test_a_damaged_journal_leaves_the_old_archive(run):
    before = rebuild(run).read_bytes()
    (segment,) = (run / "journal").glob("*.jsonl")
    segment.write_bytes(segment.read_bytes().replace(b"rule/sdpa", b"rule/XXXX"))
    with pytest.raises(PikeError, match="line 5"):
        rebuild(run)
    assert (run / "archive.h5").read_bytes() == before


@pytest.mark.parametrize("reader", [read, canonical])
def test_what_is_no_archive_gets_one_message(run, tmp_path, reader):
    path = rebuild(run)
    whole = path.read_bytes()
    bad = {
        "missing": None,
        "empty": b"",
        "text": b"hello\n" * 100,
        "truncated": whole[: len(whole) // 2],
        "cut short": whole[:-1],
    }
    for name, data in bad.items():
        target = tmp_path / f"{name}.h5"
        if data is not None:
            target.write_bytes(data)
        with pytest.raises(UsageError) as error:
            reader(target)
        message = str(error.value)
        assert str(target) in message
        assert f"pike-hpc archive rebuild {tmp_path}" in message
    with pytest.raises(UsageError):
        reader(tmp_path)


def test_foreign_and_other_versions_are_named(run, tmp_path):
    foreign = tmp_path / "foreign.h5"
    with h5py.File(foreign, "w") as file:
        file["x"] = [1, 2]
    with pytest.raises(UsageError, match="not written by pike-hpc"):
        read(foreign)
    path = rebuild(run)
    for version in (0, 3):
        with h5py.File(path, "r+") as file:
            file.attrs["format_version"] = version
        with pytest.raises(UsageError, match=f"format version {version}"):
            read(path)
        (problem,) = verify(path)
        assert f"format version {version}" in problem


def alter(file, name, change):
    rows = file[name][()]
    change(rows)
    file[name][...] = rows


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda f: f["blobs/source/bytes"].__setitem__(3, 255), "does not match its sha256"),
        (lambda f: f["blobs/log/offsets"].__setitem__(1, 10**9), "do not divide"),
        (lambda f: alter(f, "events", lambda r: r["body"].__setitem__(2, 10**6)), "body points"),
        (lambda f: alter(f, "events", lambda r: r["text"].__setitem__(1, 99)), "text points"),
        (
            lambda f: alter(f, "proposals", lambda r: r["candidate"].__setitem__(0, -1)),
            "candidate points",
        ),
        (
            lambda f: alter(f, "candidates", lambda r: r["source"].__setitem__(0, 0)),
            "source_sha256",
        ),
        (lambda f: f["evaluations"].resize((2,)), "/evaluations has 2 rows for 3"),
        (lambda f: f["events"].resize((5,)), "promises 21 events, found 5"),
        (lambda f: f.__delitem__("queries"), "/queries is missing"),
        (lambda f: f.attrs.__setitem__("config_sha256", "0"), "config_sha256"),
        (lambda f: f["provenance/run_yaml/bytes"].__setitem__(0, 7), "run_yaml"),
    ],
)
def test_verify_names_what_is_wrong(run, damage, found):
    path = rebuild(run)
    with h5py.File(path, "r+") as file:
        damage(file)
    assert any(found in problem for problem in verify(path)), verify(path)


def test_verify_of_nothing(tmp_path):
    with pytest.raises(UsageError, match="no archive"):
        verify(tmp_path / "archive.h5")


def test_any_flipped_byte_of_the_data_is_noticed(run):
    path = rebuild(run)
    whole = path.read_bytes()
    with h5py.File(path, "r") as file:
        spans = [
            (chunk.byte_offset, chunk.size)
            for name in ("events", "evaluations", "blobs/event/bytes", "blobs/source/sha256")
            for chunk in [file[name].id.get_chunk_info(0)]
        ]
    for offset, size in spans:
        for place in (offset, offset + size // 2, offset + size - 1):
            data = bytearray(whole)
            data[place] ^= 0x10
            path.write_bytes(data)
            assert verify(path)

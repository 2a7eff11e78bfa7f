"""Many byte strings as one HDF5 group: `bytes`, `offsets` (one more than rows) and `sha256`.

Equal strings share a row. One long compressed array instead of variable-length strings: those
escape HDF5's filters, so they would be neither compressed nor checksummed.
"""

from __future__ import annotations

import hashlib
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

CHUNK_BYTES = 1 << 20
"""Sources of one search differ little; a chunk of 1 MiB lets gzip see many of them."""
GZIP_LEVEL = 4


class BlobWriter:
    """Collects strings, then writes the group."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._parts: list[bytes] = []
        self._digests: list[str] = []

    def add(self, data: bytes) -> int:
        """The row under which data is kept."""
        sha = hashlib.sha256(data).hexdigest()
        row = self._rows.setdefault(sha, len(self._parts))
        if row == len(self._parts):
            self._parts.append(data)
            self._digests.append(sha)
        return row

    def sha256(self, row: int) -> str:
        """Hex digest of a row."""
        return self._digests[row]

    def write(self, group: Any) -> None:
        """Fill an empty HDF5 group."""
        lengths = [len(part) for part in self._parts]
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.uint64)]).astype("<u8")
        data = np.frombuffer(b"".join(self._parts), dtype=np.uint8)
        write_array(group, "bytes", data, chunk=CHUNK_BYTES)
        write_array(group, "offsets", offsets)
        write_array(group, "sha256", np.array(self._digests, dtype="S64"))


class BlobReader:
    """The strings of a group, all in memory."""

    def __init__(self, group: Any) -> None:
        self._data: bytes = group["bytes"][()].tobytes()
        self._offsets = [int(o) for o in group["offsets"][()]]
        self.digests = [bytes(d).decode("ascii", "replace") for d in group["sha256"][()]]

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def get(self, row: int) -> bytes:
        """The string of a row. Raises IndexError outside."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self._data[self._offsets[row] : self._offsets[row + 1]]

    def problems(self, name: str) -> list[str]:
        """What is wrong with the group, one line each."""
        ends = self._offsets
        if not ends or ends[0] != 0 or ends[-1] != len(self._data) or sorted(ends) != ends:
            return [f"/blobs/{name}/offsets do not divide its bytes"]
        if len(self.digests) != len(self):
            return [f"/blobs/{name} has {len(self.digests)} digests for {len(self)} rows"]
        return [
            f"/blobs/{name} row {row} does not match its sha256"
            for row in range(len(self))
            if hashlib.sha256(self.get(row)).hexdigest() != self.digests[row]
        ]


def write_array(group: Any, name: str, data: npt.NDArray[Any], *, chunk: int = 4096) -> None:
    """A compressed, checksummed one-dimensional dataset without time stamps."""
    assert isinstance(group, h5py.Group)
    group.create_dataset(
        name,
        data=data,
        maxshape=(None,),
        chunks=(max(1, min(chunk, len(data))),),
        compression="gzip",
        compression_opts=GZIP_LEVEL,
        shuffle=data.dtype.itemsize > 1,
        fletcher32=True,
        track_times=False,
    )

"""An archive's flat tables as Parquet files, for whoever reads many runs at once.

Contract: a column has the same type in every run, also where a run measured nothing of it.
"""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd

from pike_hpc import archive
from pike_hpc.records import PikeError, UsageError

_WHOLE = frozenset(
    {
        "windows",
        "retime",
        "phase",
        "branch",
        "round",
        "input_tokens",
        "cached_tokens",
        "output_tokens",
        "reasoning_tokens",
    }
)
_TRUTHS = frozenset({"simulated", "priced"})
_NUMBERS = frozenset(
    {"time", "speedup", "ci95_low", "ci95_high", "relative_error", "limit", "cost_usd"}
)


def write_parquet(path: Path, out_dir: Path) -> tuple[Path, ...]:
    """Write evaluations, candidates and queries as .parquet; the paths.

    Raises UsageError for an unreadable archive and where pyarrow is missing, PikeError where
    nothing can be written.
    """
    _require_pyarrow(path)
    written = []
    for table in archive.flat_tables(path):
        cells = zip(*table.rows, strict=True) if table.rows else [()] * len(table.columns)
        frame = pd.DataFrame(
            {
                name: pd.Series(list(column), dtype=_type(name))
                for name, column in zip(table.columns, cells, strict=True)
            }
        )
        written.append(_write(frame, out_dir / f"{table.name}.parquet"))
    return tuple(written)


def _require_pyarrow(path: Path) -> None:
    try:
        pd.DataFrame().to_parquet(io.BytesIO(), engine="pyarrow")
    except ImportError:  # it is in no extra: one option of one command wants it
        raise UsageError(
            "no Parquet is written without pyarrow, which this Python has not",
            where=str(path),
            valid="--csv DIR, which needs nothing more and has the same tables",
            fix="pip install pyarrow in the environment of pike-hpc, then the same command again",
        ) from None


def _type(column: str) -> str:
    if column in _WHOLE:
        return "Int64"
    if column in _TRUTHS:
        return "boolean"
    return "Float64" if column in _NUMBERS or column.endswith(("_ms", "_s")) else "string"


def _write(frame: pd.DataFrame, path: Path) -> Path:
    draft = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.to_parquet(draft, engine="pyarrow", index=False)
        draft.replace(path)
    except OSError as error:
        what = f"cannot write: {error.strerror or error}"
        raise PikeError(what, where=str(path), fix="name another folder") from None
    return path

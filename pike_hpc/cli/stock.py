"""Verdicts on torch's own settings, kept between commands: what a speedup is held against.

One file a verdict below the user's cache folder, under a name made of everything that decides
it: task, program, device, torch, driver, threads and judge. What does not match is not found,
and a file that is not whole is as good as none: the verdict is then made again.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pike_hpc.cli.baselines_plan import EAGER, MODES, STRICT, Entry, plan
from pike_hpc.config import env
from pike_hpc.proposers.rules import Toolchain, probe_toolchain
from pike_hpc.records import (
    JUDGE_VERSION,
    Candidate,
    CodecError,
    Environment,
    EvalResult,
    Task,
    digest,
    from_json,
    to_json,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """What is known of a task's stock settings where a program was judged."""

    verdicts: dict[str, EvalResult]
    """Mode to its verdict, a failure too."""
    missing: tuple[Entry, ...]
    """Modes that apply and have no verdict here."""
    absent: dict[str, str]
    """Modes that do not apply, with the reason."""

    def best(self, result: EvalResult) -> tuple[str, float] | None:
        """The fastest mode whose tier is at most as loose as a passed result's, and its speedup.

        Eager is one of them. None while nothing but eager was judged: what was not tried must
        not look as if it were beaten.
        """
        if result.tier is None or not set(self.verdicts) - {EAGER, STRICT}:
            return None
        speedups = {
            mode: verdict.timing.speedup
            for mode, verdict in self.verdicts.items()
            if verdict.timing and verdict.tier and verdict.tier.rank <= result.tier.rank
        }
        # Eager over eager is 1; what was measured of it differs from that by noise alone.
        speedups[EAGER] = 1.0
        mode = max(speedups, key=lambda name: speedups[name])
        return mode, speedups[mode]

    def document(self, result: EvalResult) -> dict[str, Any]:
        """What `evaluate --json` says of them beside a result."""
        best = self.best(result)
        over = result.timing.speedup / best[1] if best and result.timing else None
        return {
            "best": {"setting": best[0], "speedup": best[1]} if best else None,
            "over_stock": over,
            "judged": {
                mode: {
                    "status": verdict.status.value,
                    "tier": verdict.tier.value if verdict.tier else None,
                    "speedup": verdict.timing.speedup if verdict.timing else None,
                }
                for mode, verdict in self.verdicts.items()
            },
            "missing": [entry.setting for entry in self.missing],
            "absent": self.absent,
        }

    def lines(self, result: EvalResult) -> list[str]:
        """The same for a person; nothing for a program that did not pass."""
        if result.timing is None:
            return []
        best = self.best(result)
        if best is None:
            return ["  stock      none of torch's own settings was judged here yet: add --stock"]
        over = result.timing.speedup / best[1]
        mode, speedup = best
        found = [f"  stock      {over:.2f}x over torch's best at this tier: {mode} {speedup:.2f}x"]
        if self.missing:
            names = ", ".join(entry.setting for entry in self.missing)
            found.append(f"             not judged here yet (add --stock): {names}")
        return found

    def beside(self, result: EvalResult) -> EvalResult:
        """The result with its other denominators, in ms of the judging that gave its own times.

        A setting's speedup was measured on another occasion, when the reference may have been
        slower or faster; ratios carry over, times do not.
        """
        if result.timing is None:
            return result
        best, reference_ms = self.best(result), result.timing.reference_ms
        strict = self.verdicts.get(STRICT)
        strict_ms = reference_ms if result.key.device_kind == "cpu" else None
        if strict is not None and strict.timing is not None:
            strict_ms = reference_ms / strict.timing.speedup
        timing = replace(
            result.timing,
            stock_best_ms=reference_ms / best[1] if best else None,
            strict_fp32_ms=strict_ms,
        )
        return replace(result, timing=timing)


class StockVerdicts:
    """The verdicts kept in a folder. Never fails: what can't be read or written is not kept."""

    def __init__(self, folder: Path | None = None, toolchain: Toolchain | None = None) -> None:
        """Verdicts of those settings that work here.

        Args:
            folder: made when something is kept; the user's cache folder where None.
            toolchain: where programs are judged; this machine's where None.
        """
        self._folder = folder or env.user_cache_dir(env.environ()) / "stock"
        self._toolchain = toolchain or probe_toolchain()

    def keep(self, result: EvalResult) -> None:
        """Keep a verdict that says something about its program."""
        if not result.status.decides:
            return
        key = result.key
        path = self._path(key.task_digest, key.candidate_id, result.environment)
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._folder, prefix=".new-")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(to_json(result))
                Path(name).replace(path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise

    def find(self, task: Task, source: str, where: Environment) -> EvalResult | None:
        """The verdict on a program where `where` was made, if it was kept."""
        candidate_id = Candidate(task_digest=task.digest, source=source).id
        try:
            text = self._path(task.digest, candidate_id, where).read_bytes()
            result = from_json(EvalResult, text)
        except (OSError, CodecError):
            return None
        return result if result.key.candidate_id == candidate_id else None

    def look(self, task: Task, device_kind: str, where: Environment) -> Stock:
        """What is known of a task's stock settings."""
        entries = stock_entries(task, device_kind, self._toolchain)
        found = {
            entry.setting: self.find(task, entry.source, where)
            for entry in entries
            if entry.source is not None
        }
        verdicts = {mode: verdict for mode, verdict in found.items() if verdict is not None}
        return Stock(
            verdicts=verdicts,
            missing=tuple(e for e in entries if e.source and e.setting not in verdicts),
            absent={e.setting: e.declined or "" for e in entries if e.source is None},
        )

    def _path(self, task_digest: str, candidate_id: str, where: Environment) -> Path:
        parts = (task_digest, candidate_id, where.device, where.torch, where.driver)
        return self._folder / f"{digest(*parts, str(where.cpu_threads), JUDGE_VERSION)[:40]}.json"


def stock_entries(task: Task, device_kind: str, toolchain: Toolchain) -> Sequence[Entry]:
    """One a mode: its program for the task, or why there is none."""
    return plan([task], tuple(MODES), (), toolchain=toolchain, device_kind=device_kind)

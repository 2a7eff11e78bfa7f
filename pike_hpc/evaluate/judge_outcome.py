"""What an evaluation came to so far, and how it ends: the record is made of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from pike_hpc.evaluate.judge_failures import explain
from pike_hpc.evaluate.judge_link import RunnerFailed, RunnerLink
from pike_hpc.evaluate.judge_marks import Verdict
from pike_hpc.evaluate.statistics import Estimate
from pike_hpc.records import Clocks, Correctness, EvalStatus, OneOff, Profile, Tier, Timing

EXIT_GRACE_S = 1.0
"""Between a runner's last descriptor closing and its exit status."""


@dataclass(slots=True)
class Outcome:
    """What was found so far; the record is made of it in the end."""

    status: EvalStatus = EvalStatus.JUDGE_ERROR
    message: str = ""
    tier: Tier | None = None
    tags: list[str] = field(default_factory=list)
    correctness: Correctness | None = None
    timing: Timing | None = None
    profile: Profile | None = None
    build_s: float = 0.0
    load_s: float = 0.0
    first_call_s: float = 0.0

    def begin_again(self) -> None:
        """Forget all but what its import took: it is judged on other weights, or once more."""
        fresh = Outcome(build_s=self.build_s)
        for name in self.__slots__:
            setattr(self, name, getattr(fresh, name))

    @property
    def one_off(self) -> OneOff:
        """Seconds paid once."""
        return OneOff(build_s=self.build_s, load_s=self.load_s, first_call_s=self.first_call_s)


def as_timing(found: Estimate, clocks: Clocks | None) -> Timing:
    """The record of an estimate, and of what the GPU said meanwhile."""
    return Timing(
        candidate_ms=found.candidate_ms,
        reference_ms=found.reference_ms,
        speedup=found.speedup,
        ci95=found.ci95,
        windows=found.windows,
        clocks=clocks,
    )


def conclude(
    outcome: Outcome, failed: RunnerFailed, link: RunnerLink, calls: int, allowed_s: float
) -> None:
    """Turn a failed candidate runner into status and message."""
    ending = link.end(EXIT_GRACE_S if failed.kind == "gone" else 0.0)
    outcome.status, outcome.message = explain(failed, ending, calls, allowed_s)


def no_seed(outcome: Outcome, reason: str, so_far: Verdict | None) -> None:
    """Say that a seed is no way out either.

    Args:
        outcome: gets status and message.
        reason: why the task is not admitted with weights from a seed.
        so_far: what weights put where shapes and order say came to; None where there was no place.
    """
    if so_far is None:
        outcome.status = EvalStatus.WRONG_STRUCTURE
        said = "the reference's weights have no place in it"
    else:
        outcome.status = so_far.status
        said = f"{so_far.message}, its weights being where shapes and order say"
    outcome.message = (
        f"{said}; with weights from a seed the task is not admitted: {reason}; give it a "
        "method prepare(state_dict)"
    )

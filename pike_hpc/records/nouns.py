"""The nouns of a run: Task, Candidate, EvalRequest, EvalResult and what they are made of.

Every value that crosses a module or a process is one of these frozen records. Identities are
digests of content, so the same work has the same name everywhere and is done once.
"""

from __future__ import annotations

import enum
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from pike_hpc.records.profile import Profile

JUDGE_VERSION = "32"
"""Raised whenever a change can alter a verdict; part of every result's key."""

CALIBRATION_VERSION = 11
"""Raised whenever the judge draws or calibrates weights differently; part of a task's digest."""

MAX_SOURCE_BYTES = 1_000_000
"""Task and candidate source travel inside an EvalRequest; together they stay under this."""


def digest(*parts: str | bytes) -> str:
    """sha256 over the parts, each preceded by its length, so that no two splits collide."""
    h = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        h.update(len(raw).to_bytes(8, "big"))
        h.update(raw)
    return h.hexdigest()


_digest_again = functools.lru_cache(maxsize=64)(digest)
"""`digest` of what a process asks for time and again: every verdict is compared with its task."""


class Variant(enum.StrEnum):
    """How a task draws inputs and weights and what it accepts."""

    ADMITTED = "admitted"
    """Secret inputs, randomised weights, calibrated BatchNorm, signal-relative errors."""
    LEGACY = "legacy"
    """PIKE's seeds, weights and acceptance rule; marked wherever it appears."""


class Tier(enum.StrEnum):
    """Precision by measured error, strictest first; a stricter candidate counts in looser ones."""

    FP32 = "fp32"
    TF32 = "tf32"
    HALF = "half"

    @property
    def rank(self) -> int:
        """0 for the strictest."""
        return _RANKS[self]


_RANKS = {tier: rank for rank, tier in enumerate(Tier)}


class EvalStatus(enum.StrEnum):
    """How the judging of one candidate ended. Timing exists if and only if PASSED."""

    PASSED = "PASSED"
    BUILD_ERROR = "BUILD_ERROR"
    """Syntax, import or compile error."""
    REJECTED = "REJECTED"
    """No ModelNew or Model, refused by the static screen, or faster than physics allows."""
    RUNTIME_ERROR = "RUNTIME_ERROR"
    """Raised, crashed, exited, or its doorbell was lost."""
    WRONG_STRUCTURE = "WRONG_STRUCTURE"
    """Number, shape, type or device of outputs differ, or the weights have no place in it."""
    WRONG_RESULT = "WRONG_RESULT"
    """Values differ from the reference, or bytes were never written."""
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    WORKER_LOST = "WORKER_LOST"
    """Workers died while judging it, more often than allowed: the dead letter."""
    JUDGE_ERROR = "JUDGE_ERROR"
    """The judge could not decide (reference out of memory, noisy lane, weak isolation).

    Never counted against a candidate."""

    @property
    def decides(self) -> bool:
        """Whether it says something about the candidate, and not only about who judged it."""
        return self not in (EvalStatus.WORKER_LOST, EvalStatus.JUDGE_ERROR)


class Role(enum.StrEnum):
    """What a model is asked for; a prompt, a model and a price belong to each."""

    BRAINSTORM = "brainstorm"
    """A list of ideas."""
    OPTIMISE = "optimise"
    """A program."""
    FIX = "fix"
    """A failing program repaired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A problem in KernelBench's file format. Its source is trusted code."""

    suite: str
    id: str
    """As in TASK = SUITE/ID: a number for the shipped suites, a file's stem otherwise."""
    name: str
    source: str
    variant: Variant = Variant.ADMITTED
    shape_overrides: Mapping[str, int] = field(default_factory=dict)
    """Module-level integers of the source that are replaced, such as {"batch_size": 2}."""
    calibration_version: int = CALIBRATION_VERSION

    @property
    def key(self) -> str:
        """SUITE/ID."""
        return f"{self.suite}/{self.id}"

    @property
    def digest(self) -> str:
        """sha256 of source, variant, shape overrides and calibration version."""
        overrides = ",".join(f"{k}={v}" for k, v in sorted(self.shape_overrides.items()))
        return _digest_again(
            self.source, self.variant.value, overrides, str(self.calibration_version)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One program for a task. Untrusted."""

    task_digest: str
    source: str

    @property
    def id(self) -> str:
        """sha256 of the task digest and the exact source bytes."""
        return digest(self.task_digest, self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The event that an operator made a candidate from parents. May repeat per candidate."""

    candidate_id: str
    operator: str
    """rule:NAME[+NAME…], brainstorm, optimise, fix or crossover."""
    parent_ids: tuple[str, ...] = ()
    branch: int | None = None
    phase: int | None = None
    round: int | None = None
    """Repair round: 0 for the first program of a branch."""
    note: str = ""
    """One line on what the operator wanted, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultKey:
    """The only key under which a verdict may be reused."""

    task_digest: str
    candidate_id: str
    device_kind: str
    """The GPU's model, such as nvidia-h200, or cpu."""
    image_digest: str
    judge_version: str = JUDGE_VERSION
    retime: int = 0
    """0 for the search's own verdict; n for the n-th time that it was judged again."""

    @property
    def request_id(self) -> str:
        """32 hex digits that name the request for this key in mailbox and journal."""
        again = (str(self.retime),) if self.retime else ()
        return digest(
            self.task_digest,
            self.candidate_id,
            self.device_kind,
            self.image_digest,
            self.judge_version,
            *again,
        )[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRequest:
    """A unit of judging, self-contained."""

    task: Task
    candidate_source: str
    device_kind: str
    image_digest: str
    tiers: tuple[Tier, ...] = tuple(Tier)
    min_isolation: str = "L1"
    timeout_s: float = 900.0
    judge_version: str = JUDGE_VERSION
    retime: int = 0
    """0: judge it. n: judge it again, for the n-th time, on seeds and in processes that have
    never met it."""

    def __post_init__(self) -> None:
        if self.retime < 0:
            raise ValueError(f"retime counts from 0, not {self.retime}")
        size = len(self.task.source.encode("utf-8", "surrogatepass"))
        size += len(self.candidate_source.encode("utf-8", "surrogatepass"))
        if size > MAX_SOURCE_BYTES:
            raise ValueError(f"task and candidate are {size} bytes; at most {MAX_SOURCE_BYTES}")

    @property
    def candidate(self) -> Candidate:
        """The program to judge."""
        return Candidate(task_digest=self.task.digest, source=self.candidate_source)

    @property
    def key(self) -> ResultKey:
        """What its result is filed under."""
        candidate = self.candidate  # it has the task's digest, which is no field but a sum
        return ResultKey(
            task_digest=candidate.task_digest,
            candidate_id=candidate.id,
            device_kind=self.device_kind,
            image_digest=self.image_digest,
            judge_version=self.judge_version,
            retime=self.retime,
        )

    @property
    def request_id(self) -> str:
        """Name of this request in mailbox and journal."""
        return self.key.request_id


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyVerdicts:
    """What the acceptance rules of PIKE (1e-2) and KernelBench (1e-4) would have said."""

    pike: bool
    kernelbench: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Correctness:
    """Measured error of a candidate, relative to the float64 reference and to the signal."""

    relative_error: float
    """RMS(y - y64) / RMS(y64(x) - y64(x')), the worst over outputs and seeds."""
    limit: float
    """The error at which the tier given (or, when wrong, the loosest one) ends."""
    seeds: int
    reference_precision: str
    legacy: LegacyVerdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """What NVML told of the GPU around the blocks of one timing; None is what it could not tell."""

    sm_mhz: float | None = None
    """Median of the SM clock at the ends of blocks."""
    lowest_sm_mhz: float | None = None
    slowdowns: tuple[str, ...] = ()
    """Every reason that was seen why the clock was not as high as it could be; sw_power_cap is
    the load's own doing."""
    temperature_c: float | None = None
    """The highest."""
    power_w: float | None = None
    """The highest."""
    discarded: int = 0
    """Blocks that were measured again: slower clock, hardware slowdown, another process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Request latency on the judge's clock, the null constant taken off."""

    candidate_ms: float
    reference_ms: float
    speedup: float
    """exp of the centre over blocks of log(reference / candidate)."""
    ci95: tuple[float, float]
    windows: int
    floor_ms: float | None = None
    """What no program can beat on this GPU: bytes in and out beyond its L2 cache at its peak
    bandwidth. None where its data sheet is not known, and on CPUs."""
    roofline_ms: float | None = None
    """The floor, or the reference's products and convolutions at the tier's peak where those take
    longer: a goal, which another algorithm may pass."""
    clocks: Clocks | None = None
    """None on CPUs and where NVML can't be read."""
    device_ms: float | None = None
    """The device's part of `candidate_ms`, by the candidate's own word: a hint for the search."""
    stock_best_ms: float | None = None
    strict_fp32_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOff:
    """Seconds paid once, which steady latency hides."""

    build_s: float = 0.0
    load_s: float = 0.0
    first_call_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """What separated the candidate from everything else, by attacks tried."""

    level: str
    """L0 to L4."""
    engine: str
    probes: Mapping[str, bool] = field(default_factory=dict)
    """Attack name to True where it was stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where a verdict was made."""

    device: str
    torch: str = ""
    python: str = ""
    cpu_threads: int = 0
    host: str = ""
    driver: str = ""
    buffers: str = ""
    """Where inputs and outputs lay: on the device, or on the host with copies in the timed call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """The outcome of judging one candidate."""

    key: ResultKey
    status: EvalStatus
    tier: Tier | None = None
    tags: tuple[str, ...] = ()
    correctness: Correctness | None = None
    timing: Timing | None = None
    one_off: OneOff = OneOff()
    isolation: Isolation = Isolation(level="L0", engine="none")
    message: str = ""
    """One line for a person, made by the judge."""
    log_tail: str = ""
    """The end of what the candidate printed. Hostile text."""
    environment: Environment = Environment(device="")
    profile: Profile | None = None
    """Where its time goes; None where it did not pass or could not be profiled."""
    lane_s: float = 0.0
    """Seconds of the device charged: those alone on it, and its part of those shared."""
    gpu_exclusive_s: float = 0.0
    """Those alone: nothing else ran on the device."""
    simulated: bool = False

    def __post_init__(self) -> None:
        if (self.timing is not None) != (self.status is EvalStatus.PASSED):
            raise ValueError(f"timing exists if and only if PASSED, not with {self.status}")
        if self.status is EvalStatus.PASSED and (self.tier is None or self.correctness is None):
            raise ValueError("a PASSED result carries its tier and correctness")
        if self.tier is not None and self.status is not EvalStatus.PASSED:
            raise ValueError(f"a tier is earned by passing, not with {self.status}")

    @property
    def profile_lines(self) -> tuple[str, ...]:
        """The profile for a person or a prompt: a few short lines, () where there is none."""
        if self.profile is None or self.timing is None:
            return ()
        timing = self.timing
        return self.profile.lines(
            candidate_ms=timing.candidate_ms,
            device_ms=timing.device_ms,
            roofline_ms=timing.roofline_ms,
        )

    @property
    def request_id(self) -> str:
        """Name of the request this answers."""
        return self.key.request_id

    @property
    def candidate_id(self) -> str:
        """The program judged."""
        return self.key.candidate_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one model query cost."""

    model: str
    input_tokens: int = 0
    cached_tokens: int = 0
    """Part of input_tokens."""
    output_tokens: int = 0
    """Reasoning included."""
    reasoning_tokens: int = 0
    cost_usd: float = 0.0
    priced: bool = True
    """False where no price is known (a server of one's own): cost_usd is then 0."""

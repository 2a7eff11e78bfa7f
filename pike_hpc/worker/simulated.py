"""A judge that judges nothing: verdicts drawn from a seed, each marked simulated.

For walking through search, archive and report in seconds, and for tests of everything but the
judging. The verdict depends on (seed, candidate id) alone, what it is when judged again on the
number of the attempt too, the reference's latency on (seed, task digest). Knows nothing of what
the source says.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from dataclasses import replace

from pike_hpc.records import (
    Correctness,
    Environment,
    EvalRequest,
    EvalResult,
    EvalStatus,
    Isolation,
    LegacyVerdicts,
    OneOff,
    PikeError,
    Tier,
    Timing,
    digest,
)

SIMULATED = "simulated"
"""Device kind of made-up verdicts: it can never be mistaken for that of a machine."""

PASS_RATE = 0.7

RETIME_SPREAD = 0.05
"""Standard deviation of log speedup from one timing of a candidate to the next."""

RETIME_FAILS = 0.05
"""How often a candidate that passed fails when it is judged again."""

FAILURES: tuple[tuple[EvalStatus, float, str, str], ...] = (
    (
        EvalStatus.BUILD_ERROR,
        0.30,
        "the candidate does not compile",
        'error: identifier "blockIdx_x" is undefined\n1 error detected in the compilation',
    ),
    (
        EvalStatus.RUNTIME_ERROR,
        0.25,
        "the candidate raised RuntimeError",
        "Traceback (most recent call last):\n"
        "RuntimeError: shape '[8, 64]' is invalid for input of size 1024",
    ),
    (EvalStatus.WRONG_RESULT, 0.25, "error 0.31 of the signal, above the limit of every tier", ""),
    (EvalStatus.WRONG_STRUCTURE, 0.05, "one output of shape (8, 10), expected (8, 100)", ""),
    (
        EvalStatus.REJECTED,
        0.05,
        "defines neither ModelNew nor Model",
        "",
    ),
    (EvalStatus.TIMEOUT, 0.05, "not done within its time", "compiling, 1 of 2 kernels\n"),
    (
        EvalStatus.OUT_OF_MEMORY,
        0.05,
        "the candidate ran out of memory",
        "RuntimeError: can't allocate memory: you tried to allocate 68719476736 bytes",
    ),
)
"""Status, share among the failures, message, log tail."""

_TIERS = ((Tier.FP32, 0.6, 2e-7, 1e-5), (Tier.TF32, 0.2, 4e-4, 2e-3), (Tier.HALF, 0.2, 3e-3, 2e-2))
"""Tier, share, typical error, limit."""
_PHASES = ("build", "load", "check", "time")


class SimulatedJudge:
    """Draws verdicts. `latency_s` is the mean time pretended per request."""

    def __init__(self, device_kind: str, *, seed: int = 0, latency_s: float = 0.0) -> None:
        self._device_kind = device_kind
        self._seed = seed
        self._latency_s = latency_s
        self._closed = threading.Event()

    @property
    def device_kind(self) -> str:
        """The kind of device that it pretends to have."""
        return self._device_kind

    def evaluate(self, request: EvalRequest, on_phase: Callable[[str], None]) -> EvalResult:
        """The verdict for (seed, candidate id)."""
        result = simulated_result(request, self._seed)
        rng = _rng(self._seed, "latency", request.candidate.id)
        pause_s = self._latency_s * rng.uniform(0.5, 1.5) / len(_PHASES)
        for phase in _PHASES:
            on_phase(phase)
            if self._closed.is_set() or (pause_s and self._closed.wait(pause_s)):
                raise PikeError("the simulated judge was closed")
        return result

    def close(self) -> None:
        """End an evaluation under way."""
        self._closed.set()


def simulated_result(request: EvalRequest, seed: int) -> EvalResult:
    """A verdict that could have been, always the same for (seed, candidate id, retime)."""
    rng = _rng(seed, "verdict", request.candidate.id)
    if rng.random() >= PASS_RATE:
        return _failed(request, rng)
    first = _passed(request, seed, rng)
    return _again(request, first, seed) if request.retime else first


def _again(request: EvalRequest, first: EvalResult, seed: int) -> EvalResult:
    """What passed once, judged again: another timing, or now and then a failure."""
    rng = _rng(seed, f"retime {request.retime}", request.candidate.id)
    if rng.random() < RETIME_FAILS:
        return _failed(request, rng)
    assert first.timing is not None, "it passed"
    off = math.exp(rng.gauss(0.0, RETIME_SPREAD))
    timing = replace(
        first.timing,
        candidate_ms=first.timing.candidate_ms / off,
        speedup=first.timing.speedup * off,
        ci95=(first.timing.ci95[0] * off, first.timing.ci95[1] * off),
    )
    return replace(
        first,
        timing=timing,
        message=f"SIMULATED: {timing.speedup:.2f}x at {first.tier}",
        lane_s=rng.uniform(5.0, 60.0),
    )


def _passed(request: EvalRequest, seed: int, rng: random.Random) -> EvalResult:
    reference_ms = math.exp(_rng(seed, "reference", request.task.digest).gauss(0.0, 1.5))
    speedup = math.exp(rng.gauss(0.25, 0.45))
    half_width = rng.uniform(0.005, 0.05)
    tiers = [t for t in _TIERS if t[0] in request.tiers] or list(_TIERS[:1])
    tier, _, error, limit = rng.choices(tiers, weights=[t[1] for t in tiers])[0]
    error *= rng.uniform(0.5, 2.0)
    return EvalResult(
        key=request.key,
        status=EvalStatus.PASSED,
        tier=tier,
        correctness=Correctness(
            relative_error=error,
            limit=limit,
            seeds=3,
            reference_precision="float64",
            legacy=LegacyVerdicts(pike=error < 1e-2, kernelbench=error < 1e-4),
        ),
        timing=Timing(
            candidate_ms=reference_ms / speedup,
            reference_ms=reference_ms,
            speedup=speedup,
            ci95=(speedup * (1 - half_width), speedup * (1 + half_width)),
            windows=12,
        ),
        message=f"SIMULATED: {speedup:.2f}x at {tier.value}",
        one_off=OneOff(load_s=rng.uniform(0.5, 2.0), first_call_s=rng.uniform(0.01, 0.5)),
        isolation=Isolation(level="L0", engine="simulated"),
        environment=Environment(device=f"{request.device_kind} (simulated)"),
        lane_s=rng.uniform(5.0, 60.0),
        simulated=True,
    )


def _failed(request: EvalRequest, rng: random.Random) -> EvalResult:
    status, _, message, log_tail = rng.choices(FAILURES, weights=[f[1] for f in FAILURES])[0]
    return EvalResult(
        key=request.key,
        status=status,
        message=f"SIMULATED: {message}",
        log_tail=log_tail,
        isolation=Isolation(level="L0", engine="simulated"),
        environment=Environment(device=f"{request.device_kind} (simulated)"),
        lane_s=rng.uniform(0.5, 10.0),
        simulated=True,
    )


def _rng(seed: int, purpose: str, name: str) -> random.Random:
    """A stream of its own for each purpose; the same in every process and Python."""
    return random.Random(int(digest(str(seed), purpose, name), 16))

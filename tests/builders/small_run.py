"""A small run with everything in it, as a controller would have written it."""

from dataclasses import replace

from builders import queries
from builders.results import correct, key_of, timed

from pike_hpc.journal import TaskJournal
from pike_hpc.records import (
    Brainstormed,
    Candidate,
    Declined,
    EvalResult,
    EvalStatus,
    Evaluated,
    LegacyVerdicts,
    QueryFailed,
    QueryLost,
    Requested,
    Task,
    TaskOpened,
    Tier,
)

HOSTILE = "print('\0 \ud800 </script> =1+1')\n"

TASK = Task(suite="level3-pike", id="4", name="LeNet", source="import torch\n")


def candidate_id(source):
    return Candidate(task_digest=TASK.digest, source=source).id


def result(source, status=EvalStatus.PASSED, *, ms=1.0, tags=(), log="", error=1e-7, retime=0):
    passed = status is EvalStatus.PASSED
    return EvalResult(
        key=key_of(TASK.digest, candidate_id(source), retime=retime),
        status=status,
        tier=Tier.FP32 if passed else None,
        tags=tags,
        correctness=correct(
            relative_error=error, legacy=LegacyVerdicts(pike=True, kernelbench=False)
        )
        if passed
        else None,
        timing=timed(2.0 / ms, candidate_ms=ms, reference_ms=2.0, ci95=(1.0, 3.0))
        if passed
        else None,
        message="fine",
        log_tail=log,
    )


def proposed(node, source, *, operator="rule:identity", keep_source=True, **place):
    kept = source if keep_source else ""
    return queries.proposed(node, candidate_id(source), kept, operator=operator, **place)


def reserved(query_id, node, role="optimise"):
    return queries.reserved(query_id, node, role, usd=0.5)


def answered(query_id, text):
    return replace(queries.answered(query_id, text, usd=0.25, tokens=(10, 20)), latency_s=1.5)


def rich_events():
    return [
        TaskOpened(task=TASK, device_kind="cpu"),
        proposed("rule/identity", "a"),
        Requested(request_id="r", candidate_id=candidate_id("a")),
        Declined(node="rule/sdpa", operator="rule:sdpa", reason="no attention"),
        Evaluated(result=result("a", log="log \0\udcff", tags=("early_stop", "weights_by_seed"))),
        reserved("q0", "p0", "brainstorm"),
        answered("q0", "1. fuse\n2. fold"),
        Brainstormed(node="p0", ideas=("fuse", "fold")),
        reserved("q1", "p0/b0/r0"),
        QueryFailed(query_id="q1", kind="RateLimit", message="slow down", charged=False),
        reserved("q2", "p0/b0/r0"),
        QueryLost(query_id="q2"),
        reserved("q3", "p0/b0/r0"),
        answered("q3", "```python\n" + HOSTILE + "```"),
        proposed("p0/b0/r0", HOSTILE, operator="optimise", phase=0, branch=0, round=0),
        Evaluated(result=result(HOSTILE, EvalStatus.RUNTIME_ERROR)),
        proposed("p0/b0/r1", "fixed", operator="fix", phase=0, branch=0, round=1),
        Evaluated(result=result("fixed", ms=0.5)),
        proposed("p0/b1/r0", "a", operator="optimise", keep_source=False, phase=0, branch=1,
                 round=0, parent_ids=(candidate_id("fixed"),)),
        reserved("q4", "p1"),
    ]  # fmt: skip


def write(run, events, *, slug="level3-pike_4", writer="w", start=1_700_000_000.0):
    ticks = iter(range(1_000_000))
    clock = lambda: start + next(ticks)  # noqa: E731
    with TaskJournal.open(run, slug, writer=writer, seed=1, clock=clock) as journal:
        for event in events:
            journal.append(event, durable=False)


def small_run(folder):
    run = folder / "level3-0123abcd"
    run.mkdir()
    (run / "run.yaml").write_text("schema_version: 1\nname: level3\n")
    write(run, rich_events())
    return run

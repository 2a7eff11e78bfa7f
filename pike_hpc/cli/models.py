"""The models of a run: from the workflow's spec and the keys of this environment to clients."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from pike_hpc.agent import Models, Seat
from pike_hpc.cli.tape import Tape
from pike_hpc.config import ModelSpec, Resolved, env
from pike_hpc.llm import ModelRequest, RetryPolicy, Waits, make_model, price_of
from pike_hpc.records import Role

MODEL_TAPE = "model.jsonl"
"""Name of the model's cassette in the folder of --record and --replay."""

_BRIEF = RetryPolicy(tries=2, max_total_s=10.0)
"""For who only wants to know whether a model answers."""


def make_models(resolved: Resolved, tape: Tape | None = None) -> Models | None:
    """A model for each role; None where the search asks none. Raises UsageError."""
    workflow = resolved.workflow
    if not workflow.asks_models:
        return None
    specs = {role: workflow.model_for(role.value) for role in Role}
    made: list[tuple[ModelSpec, Seat]] = []
    seats = {}
    waits = Waits()
    for role, spec in specs.items():
        if spec is None:
            continue
        seat = next((seat for known, seat in made if known == spec), None)
        if seat is None:  # roles that name the same model share its client
            seat = _seat(spec, resolved, tape or Tape(), waits=waits)
            made.append((spec, seat))
        seats[role] = seat
    ideas = workflow.search.options.get("branches", 10)
    return Models(seats, workflow.evaluate.tiers, int(ideas), waits)


def brief_answers(resolved: Resolved) -> Iterator[tuple[str, float]]:
    """Ask each model of the workflow for one token; its name and the seconds it took.

    Raises what models raise: ModelRefused, ModelUnavailable; UsageError for a missing key.
    """
    asked = set()
    for role in Role:
        spec = resolved.workflow.model_for(role.value)
        if spec is None or (spec.model, spec.base_url) in asked:
            continue
        asked.add((spec.model, spec.base_url))
        model = _seat(spec, resolved, Tape(), policy=_BRIEF).model
        question = ModelRequest(
            role=role,
            system="Answer with one word.",
            user="Are you there?",
            temperature=spec.temperature,
            max_output_tokens=1,
        )
        yield model.name, model.complete(question).latency_s


def check_keys(resolved: Resolved, tape: Tape) -> None:
    """Make every client once, so that a missing key or price stops a run before it starts."""
    models = make_models(resolved, Tape(replay=tape.replay))
    if models is not None:
        models.close()


def _seat(
    spec: ModelSpec,
    resolved: Resolved,
    tape: Tape,
    *,
    policy: RetryPolicy | None = None,
    waits: Waits | None = None,
) -> Seat:
    environ = env.environ()
    if tape.replay is not None:
        spec = dataclasses.replace(spec, provider="cassette", model=str(tape.replay / MODEL_TAPE))
    key = None
    if spec.provider == "openai" and spec.key_env:
        key = env.api_key(spec.key_env, environ, resolved.site.key_files).reveal()
    prices = env.user_config_dir(environ) / "prices.yaml"
    override = prices if prices.is_file() else None
    if spec.is_paid:
        price_of(spec.model, own_server=False, override=override)
    model = make_model(
        provider=spec.provider,
        model=spec.model,
        base_url=spec.base_url,
        key=key,
        prices=override,
        record=tape.record / MODEL_TAPE if tape.record else None,
        policy=policy,
        waits=waits,
    )
    return Seat(
        model=model,
        temperature=spec.temperature,
        max_output_tokens=spec.max_output_tokens,
    )

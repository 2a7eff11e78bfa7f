"""Model queries of an agent: from a strategy's wish to a prompt, and to an answer in a thread.

A prompt is made from the task's view alone, so that the same view asks the same thing. Threads
only wait for answers; journals and views are touched by the controller's thread.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from pike_hpc.llm import Completion, LanguageModel, ModelRequest, NotRecorded, Waits
from pike_hpc.proposers.agents import Prompt, render
from pike_hpc.records import EvalResult, PikeError, QueryReserved, Role, Task, Tier, digest
from pike_hpc.search import AskModel, TaskView, tried
from pike_hpc.tasks import effective_source

_PARALLEL = 64
"""Queries in flight at once, of all tasks of an agent: at 10 s an answer they feed 64 workers at
10 s a verdict. A provider's rate limit is met by backing off, not by this."""

_TORCH = "2.11 to 2.13"
"""What candidates run on as far as is known before the first verdict."""

_REFERENCE = "rule:identity"
"""The operator whose candidate is the reference itself."""

_HISTORY = 8
"""Tried programs that a prompt tells about, the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """The model that plays a role, and how it is asked."""

    model: LanguageModel
    temperature: float
    max_output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A query that may be sent once `reserved` is on disk."""

    reserved: QueryReserved
    request: ModelRequest
    seat: Seat


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back: a completion, the error that a person must read, or both."""

    completion: Completion | None = None
    error: PikeError | None = None
    kind: str = ""
    charged: bool = False
    """Whether an error may have been paid for all the same."""


class Models:
    """The models of a run by role."""

    def __init__(
        self,
        seats: Mapping[Role, Seat],
        tiers: tuple[Tier, ...],
        ideas: int = 10,
        waits: Waits | None = None,
    ) -> None:
        """`ideas` is how many a brainstorm is asked for: one a branch; `waits` are the models'."""
        self._seats, self._tiers, self.ideas = seats, tiers, ideas
        self._lock = threading.Lock()
        self._open = 0
        self._closed = threading.Event()
        self._waits = waits

    @property
    def room(self) -> int:
        """Queries that may be sent now.

        One that is reserved and waits is lost at its ceiling when its agent is killed, though
        nobody was asked.
        """
        with self._lock:
            return _PARALLEL - self._open

    def prepare(self, action: AskModel, view: TaskView, task: Task, device_kind: str) -> Prepared:
        """The query for an action, with the ceiling of its cost. Sends nothing."""
        seat = self._seats[action.role]
        prompt = _prompt(action, view, task, device_kind, self._tiers, self.ideas)
        # After a loss the very same question is asked again, so that a cassette answers it too.
        attempt = len(view.queries_of.get(action.node, ()))
        request = ModelRequest(
            role=action.role,
            system=prompt.system,
            user=prompt.user,
            temperature=seat.temperature,
            max_output_tokens=seat.max_output_tokens,
            request_key=f"{task.digest[:12]}/{action.node}",
        )
        reserved = QueryReserved(
            query_id=digest(task.digest, action.node, str(attempt))[:32],
            node=action.node,
            role=action.role.value,
            model=seat.model.name,
            prompt_digest=digest(prompt.system, prompt.user),
            max_cost_usd=seat.model.max_cost_usd(request),
            parent_ids=tuple(p for p in (action.parent_id, action.failed_id) if p),
            branch=action.branch,
            phase=action.phase,
            round=action.round,
            note=(action.idea or "")[:200],
        )
        return Prepared(reserved=reserved, request=request, seat=seat)

    def send(self, prepared: Prepared) -> Future[Answer]:
        """Ask in a thread; the future never raises. After `close` it may never be done."""
        future: Future[Answer] = Future()
        with self._lock:
            self._open += 1
        # A daemon: an agent told to stop must not wait for a server that says nothing.
        threading.Thread(
            target=self._answer, args=(prepared, future), name="model", daemon=True
        ).start()
        return future

    def stop_waiting(self) -> None:
        """Ask nobody again: who has answered with an error by now ends with it, and is not paid."""
        if self._waits is not None:
            self._waits.end()

    def close(self) -> None:
        """Send nothing more; answers in flight are lost and will be journalled as such."""
        self._closed.set()

    def _answer(self, prepared: Prepared, future: Future[Answer]) -> None:
        try:
            answer = None if self._closed.is_set() else _ask(prepared)
        except BaseException as error:  # nobody watches this thread: the future tells
            future.set_exception(error)
            return
        finally:
            with self._lock:
                self._open -= 1
        if answer is not None:
            future.set_result(answer)


def _ask(prepared: Prepared) -> Answer:
    try:
        return Answer(completion=prepared.seat.model.complete(prepared.request))
    except NotRecorded as error:
        return Answer(completion=error.completion, error=error)
    except PikeError as error:
        return Answer(error=error, kind=type(error).__name__)
    except Exception as error:  # of a client's own making: it ends one task, not the agent
        kind = type(error).__name__
        what = f"model {prepared.seat.model.name} failed: {kind}: {error}"
        return Answer(error=PikeError(what), kind=kind, charged=True)


def _prompt(
    action: AskModel,
    view: TaskView,
    task: Task,
    device_kind: str,
    tiers: tuple[Tier, ...],
    ideas: int,
) -> Prompt:
    device, torch_version = _place(view, device_kind)
    failed = view.result(action.failed_node) if action.failed_node else None
    declined = view.outcomes[action.failed_node].declined if action.failed_node else None
    parent = view.results.get(action.parent_id) if action.parent_id else None
    profiled = _reference(view) if action.parent_id is None else parent
    summary = None
    if parent is not None and parent.timing is not None:
        summary = f"{parent.timing.speedup:.2f}x over eager, correct at tier {parent.tier}"
    return render(
        action.role,
        task_source=effective_source(task),
        device=device,
        torch_version=torch_version,
        tiers=tiers,
        on_gpu=device_kind != "cpu",
        parent_source=view.sources.get(action.parent_id) if action.parent_id else None,
        parent_summary=summary,
        profile=profiled.profile_lines if profiled is not None else (),
        idea=action.idea,
        failure_status=failed.status.value if failed else "NO_PROGRAM" if declined else "",
        failure_message=failed.message if failed else declined or "",
        log_tail=failed.log_tail if failed else "",
        failed_source=view.sources.get(action.failed_id) if action.failed_id else None,
        n_ideas=ideas,
        history=tried(view, phase=action.phase, limit=_HISTORY),
    )


def _place(view: TaskView, device_kind: str) -> tuple[str, str]:
    """Device and PyTorch that judged the task's first candidate; before it what is known anyway.

    The first, so that the beginning of a task's prompts stays the same and can be cached.
    """
    environments = (verdict.environment for verdict in view.verdicts.values())
    first = next((environment for environment in environments if environment.torch), None)
    if first is None:
        return device_kind, _TORCH
    device = f"{device_kind} ({', '.join(filter(None, (first.device, first.driver)))})"
    python = f", Python {first.python}" if first.python else ""
    return device, f"{first.torch}{python}"


def _reference(view: TaskView) -> EvalResult | None:
    """The verdict on the reference as a candidate, for where its time goes."""
    made = (p.candidate_id for p in view.proposals.values() if p.operator == _REFERENCE)
    return next((view.results[c] for c in made if c in view.results), None)

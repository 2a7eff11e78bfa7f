"""One task's controller: strategy in, journal first, mailbox and models out.

The order of writing is the whole of its safety. A query is reserved on disk before it is sent
and its answer is on disk before it is read; a request is journalled before it is put, and put
again after a kill (the mailbox knows it by its id); a verdict counts once it is journalled, and
only then may the mailbox forget it. While the mailbox does not answer, what it is to be told is
owed to it (`agent.outbox`) and nothing new is decided; no task ends by that.

A search that has ended is not over: what leads is judged again first (`search.elites`), and each
such request is journalled and put like any other. What the search had asked for and nobody has
begun to judge is taken back, so that it does not stand in the way; what is being judged counts.

It knows no clock: `room` says how many evaluations may be in flight, the caller says when to stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from pike_hpc.agent.decisions import by_answer, by_rule, lost
from pike_hpc.agent.memory import Memory
from pike_hpc.agent.outbox import Outbox
from pike_hpc.agent.queries import Answer, Models, Prepared
from pike_hpc.agent.task_setup import TaskSetup
from pike_hpc.journal import TaskJournal
from pike_hpc.mailbox import Mailbox
from pike_hpc.proposers.rules import is_stock_operator
from pike_hpc.records import (
    EvalRequest,
    Evaluated,
    Event,
    Finished,
    Paused,
    PikeError,
    QueryAnswered,
    QueryFailed,
    Requested,
    SearchEnded,
    TaskOpened,
    TryAgainLater,
)
from pike_hpc.search import (
    AskModel,
    Finish,
    OpenQuery,
    ProposeByRule,
    Retime,
    TaskView,
    may_evaluate,
    retimes_due,
    why_no_device_time,
    why_no_query,
    why_unjudgeable,
)


class Controller:
    """Drives one task. Owns its journal; one thread calls it."""

    def __init__(
        self, setup: TaskSetup, journal: TaskJournal, mailbox: Mailbox, models: Models | None
    ) -> None:
        self.setup = setup
        self._memory = Memory(journal)
        self._outbox = Outbox(mailbox, self._memory.require_newest)
        self._models = models
        self._asking: dict[str, Future[Answer]] = {}
        self._idle_at: tuple[int, ...] | None = None
        self.error: PikeError | None = None
        """Why no model is asked any more; a provider's refusal or silence."""
        self.view: TaskView = self._memory.view
        self._recover()

    @property
    def finished(self) -> bool:
        """Whether this task is over, its best timed again included."""
        return self.view.finished is not None

    @property
    def search_ended(self) -> bool:
        """Whether nothing new is tried any more; timing again may go on."""
        return self.view.ended is not None

    @property
    def retimes_left(self) -> int:
        """Candidates that would be judged again if the search ended now."""
        return len(self._retimes_due())

    @property
    def in_flight(self) -> int:
        """Evaluations put into the mailbox and not yet journalled."""
        return len(self._awaited)

    @property
    def mailbox_trouble(self) -> TryAgainLater | None:
        """Why the mailbox could not be told or asked just now: `collect` tries again."""
        return self._outbox.trouble

    @property
    def owes(self) -> bool:
        """Whether the mailbox was not told all that the journal says: `collect` tries again."""
        return self._outbox.owes

    @property
    def retimes_asked(self) -> int:
        """Requests to time a candidate again so far."""
        return sum(self.view.retimes_asked.values())

    @property
    def asking(self) -> int:
        """Model queries whose answer is not here yet."""
        return len(self._asking)

    @property
    def slowest_answer_s(self) -> float:
        """The longest that a model took to answer so far; 0 before the first answer."""
        return max((query.latency_s for query in self.view.queries.values()), default=0.0)

    def collect(self) -> bool:
        """Journal what has arrived: verdicts and answers. True if anything did.

        A provider's failure ends up in `error`; answers of its other queries still count.
        """
        results = self._outbox.results(() if self.finished else self._awaited)
        for _, result in sorted(results.items()):
            self._write(Evaluated(result=result), durable=False)
        answered = [query_id for query_id, future in self._asking.items() if future.done()]
        for query_id in answered:
            self._settle(query_id, self._asking.pop(query_id))
        if results or answered:
            self._memory.sync()
        if results:
            self._outbox.discard(results)
        for query in self.view.unparsed:
            self._read_answer(query)
        return bool(results or answered)

    def advance(self, room: int, *, may_ask: bool = True) -> bool:
        """Take the decisions that are ready, with at most `room` new evaluations.

        A rule that declines takes no room. Without `may_ask` no model is asked. Of what
        is to be timed again it asks for one a call, so that the caller can give other tasks their
        turn. True if anything was done.
        """
        if self.finished or self.error is not None or self.owes:
            return False
        # Decisions are pure: what came to nothing does so until something is written or answered.
        may_ask = may_ask and (self._models is None or self._models.room > 0)
        known = (self._memory.written, self.in_flight, self.asking, room, may_ask)
        if known == self._idle_at:
            return False
        acted = self._retime(room) if self.search_ended else self._search(room, may_ask)
        self._idle_at = None if acted or self.mailbox_trouble else known
        return acted

    def _search(self, room: int, may_ask: bool) -> bool:
        """What the strategy wants next."""
        stop = why_no_device_time(self.view, self.setup.limits) or why_unjudgeable(self.view)
        if stop is not None:
            self.end_search(stop)
            return True
        put = self._request_waiting(room)
        room, acted = room - put, put > 0
        questions: list[Prepared] = []
        try:
            for action in self.setup.strategy.decide(self.view):
                if self.search_ended:
                    break  # the action before found that nothing more can be paid
                match action:
                    case ProposeByRule():
                        if room <= 0:
                            break
                        self._write(by_rule(self.setup, action))
                        room -= self._request_waiting(room)
                        acted = True
                    case AskModel():
                        if may_ask and self._fits(questions):
                            questions += self._reserve(action)
                    case Finish(reason=reason):
                        if not self.in_flight and not self.asking:
                            self.end_search(reason)
                            acted = True
        finally:
            self._send(questions)
        return acted or bool(questions)

    def end_search(self, reason: str) -> None:
        """Try nothing new any more; the next `advance` times the best again.

        Requests that nobody has begun to judge are taken back.
        """
        self._write(SearchEnded(reason=reason))
        self._take_back()

    def finish(self) -> None:
        """End this task for good, whatever of its best was timed again. Its search has ended."""
        assert self.view.ended is not None, "end_search comes first"
        left = self._awaited
        self._write(Finished(reason=self.view.ended))
        if left:
            self._outbox.discard(left)

    def stop_waiting(self) -> None:
        """Wait no longer for a provider in trouble: its queries fail, and are not paid."""
        if self._models is not None:
            self._models.stop_waiting()

    def pause(self, reason: str, exit_code: int) -> None:
        """Leave a note of why this controller stops before the end, if it did anything."""
        if exit_code or not self._memory.idle:
            self._write(Paused(reason=reason, exit_code=exit_code))

    def close(self) -> None:
        """Give the task's lock back.

        Without a trace where nothing happened: who looks in every few minutes would fill the
        folder with segments.
        """
        self._memory.close()

    def _recover(self) -> None:
        if self.view.task is None:
            self._write(TaskOpened(task=self.setup.task, device_kind=self.setup.device_kind))
        for query_id in self.view.in_flight:
            self._write(lost(self.view.open_queries[query_id].reserved))
        for query in self.view.unparsed:
            self._read_answer(query)
        if self.finished:
            self._outbox.taken_back |= {*self.view.unjudged, *self.view.retiming}
            return
        if self.search_ended:
            self._take_back()
        asked = {**({} if self.search_ended else self.view.unjudged), **self.view.retiming}
        requests = [self._request_again(request_id, asked[request_id]) for request_id in asked]
        self._memory.sync()
        self._outbox.put(requests)
        self._outbox.discard(asked.keys() - {request.request_id for request in requests})

    def _request_again(self, request_id: str, candidate_id: str) -> EvalRequest:
        """The request that an earlier controller waited for.

        It has another id where the run goes on with another judge, such as another torch where
        there is no image. Then it is journalled anew, and nobody waits for the old one.
        """
        retime = self.view.retimes_asked[candidate_id] if request_id in self.view.retiming else 0
        request = self._request_for(candidate_id, retime)
        if request.request_id != request_id:
            self._write(
                Requested(request_id=request.request_id, candidate_id=candidate_id, retime=retime),
                durable=False,
            )
        return request

    @property
    def _awaited(self) -> tuple[str, ...]:
        """Requests whose verdict will come."""
        asked = (*self.view.unjudged, *self.view.retiming)
        return tuple(i for i in asked if i not in self._outbox.taken_back)

    def _take_back(self) -> None:
        """Leave in the mailbox only those of the search's requests whose judging has begun."""
        self._outbox.withdraw(self.view.unjudged.keys())

    def _write(self, event: Event, *, durable: bool = True) -> None:
        self._memory.write(event, durable=durable)

    def _request_waiting(self, room: int) -> int:
        """Put proposed but unjudged candidates into the mailbox; how many."""
        requests: list[EvalRequest] = []
        for candidate_id in self.view.unrequested:
            if len(requests) >= room or not may_evaluate(self.view, self.setup.limits):
                break
            request = self._request_for(candidate_id)
            asked = Requested(request_id=request.request_id, candidate_id=candidate_id)
            self._write(asked, durable=False)
            requests.append(request)
        if requests:
            self._memory.sync()
            self._outbox.put(requests)
        return len(requests)

    def _retime(self, room: int) -> bool:
        """Have one of those that lead judged again; once none is left, finish."""
        due = self._retimes_due()
        if not due and not self.in_flight and not self.asking:
            self.finish()
            return True
        if not due or room <= 0:
            return False
        request = self._request_for(due[0].candidate_id, due[0].attempt)
        asked = Requested(
            request_id=request.request_id,
            candidate_id=due[0].candidate_id,
            retime=due[0].attempt,
        )
        self._write(asked)
        self._outbox.put([request])
        return True

    def _retimes_due(self) -> tuple[Retime, ...]:
        proposals = self.view.proposals.values()
        controls = {p.candidate_id for p in proposals if is_stock_operator(p.operator)}
        return retimes_due(self.view, self.setup.tiers, controls)

    def _request_for(self, candidate_id: str, retime: int = 0) -> EvalRequest:
        return self.setup.request(self.view.sources[candidate_id], retime)

    def _fits(self, questions: Sequence[Prepared]) -> bool:
        """Whether one more question than these may be sent now. Raises Held."""
        if self._models is not None and self._models.room <= len(questions):
            return False
        return bool(questions) or self._outbox.is_ours()

    def _reserve(self, action: AskModel) -> tuple[Prepared, ...]:
        """Reserve one query; none where its ceiling does not fit what is left.

        It is on disk once it is sent, and sent at once: the caller has room for it.
        """
        if self._models is None:
            raise PikeError(
                f"the strategy asked a model for {action.role} and none is configured",
                where="models in the workflow",
                fix="name a model under models.optimise, or use strategy: rules",
            )
        setup = self.setup
        prepared = self._models.prepare(action, self.view, setup.task, setup.device_kind)
        stop = why_no_query(self.view, setup.limits, prepared.reserved.max_cost_usd)
        if stop is not None:
            if self.view.idle and not self.view.unrequested:
                self.end_search(stop)  # no smaller query will come: nothing else would end this
            return ()
        self._write(prepared.reserved, durable=False)
        return (prepared,)

    def _send(self, questions: Sequence[Prepared]) -> None:
        if not questions:
            return
        assert self._models is not None, "somebody has prepared the questions"
        self._memory.sync()
        for prepared in questions:
            self._asking[prepared.reserved.query_id] = self._models.send(prepared)

    def _settle(self, query_id: str, future: Future[Answer]) -> None:
        """Write an answer down. It is on disk before it is read."""
        answer = future.result()
        if answer.error is not None and not self.search_ended:  # then nobody is asked anyway
            self.error = answer.error
        if answer.completion is None:
            assert answer.error is not None, "an answer is a completion or an error"
            failed = QueryFailed(
                query_id=query_id,
                kind=answer.kind,
                message=answer.error.what,
                charged=answer.charged,
            )
            self._write(failed, durable=False)
            return
        completion = answer.completion
        answered = QueryAnswered(
            query_id=query_id,
            text=completion.text,
            finish_reason=completion.finish_reason,
            usage=completion.usage,
            latency_s=completion.latency_s,
        )
        self._write(answered, durable=False)

    def _read_answer(self, query: OpenQuery) -> None:
        """Make of an answer what is in it. A kill loses nothing: it is read again."""
        assert query.answer is not None, "only an answer on disk is read"
        ideas = self._models.ideas if self._models is not None else 1
        self._write(by_answer(self.setup, query.reserved, query.answer, ideas), durable=False)

"""OpenAIModel: any server that speaks OpenAI's chat completions, through the openai client.

Contract: the SDK's own retries are off; `llm.retry` is the only layer that asks again. Refusals
(401, 403, 404, 400 …) are ModelRefused at once; timeouts, broken connections and bodies that are
no answer are ModelUnavailable after the tries, rate limits and overload after the time of the
policy. A server that refuses `temperature` or `max_tokens` is asked without the one, or by its
newer name, from then on. The key goes into the client and nowhere else: not into messages, not
into a repr.
"""

from __future__ import annotations

import email.utils
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import openai

from pike_hpc.llm.chat_body import BadBody, error_text, parse_body
from pike_hpc.llm.errors import ModelRefused, ModelUnavailable
from pike_hpc.llm.prices import Price
from pike_hpc.llm.request import Completion, ModelRequest
from pike_hpc.llm.retry import RetryPolicy, Transient, with_retries

OPENAI_URL = "https://api.openai.com/v1"

_CONNECT_S = 10.0
"""A host that doesn't even take a connection in this time is not there; an answer may take long."""

_TRANSIENT = frozenset({408, 409, 425, 429})
"""With every 5xx: the statuses that the openai client itself would retry."""

_OVERLOADED = frozenset({429, 503})
"""Too many requests, or nobody free: waiting helps, and nothing was done or charged."""

_CHECK = {
    400: "what the server says about the request, and models: max_output_tokens",
    401: "the key: is the variable that key_env names set to a key of this provider?",
    403: "whether this key may use this model",
    404: "models: model and base_url (it usually ends in /v1)",
}


class OpenAIModel:
    """One model of one server."""

    def __init__(
        self,
        name: str,
        *,
        key: str | None,
        base_url: str = OPENAI_URL,
        price: Price | None = None,
        timeout_s: float = 600.0,
        policy: RetryPolicy | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        """`key` None: the server asks for none. `timeout_s` is for each try."""
        self._name, self._base_url, self._price = name, base_url, price
        self._key = key
        self._policy = policy or RetryPolicy()
        self._sleep, self._clock, self._rng = sleep, clock, rng or random.Random()
        self._client = openai.OpenAI(
            api_key=key or "none",
            base_url=base_url,
            timeout=openai.Timeout(timeout_s, connect=_CONNECT_S),
            max_retries=0,
        )
        self._lock = threading.Lock()
        self._drops_temperature = False
        self._renames_max_tokens = False

    @property
    def name(self) -> str:
        """The provider's name of the model."""
        return self._name

    def max_cost_usd(self, request: ModelRequest) -> float:
        """The ceiling by the price table; 0 without a price."""
        return self._price.ceiling_usd(request) if self._price else 0.0

    def close(self) -> None:
        """Close the client's connections."""
        self._client.close()

    def complete(self, request: ModelRequest) -> Completion:
        """Ask until there is an answer, a refusal, or no try left."""
        start = self._clock()
        try:
            completion = with_retries(
                lambda: self._attempt(request),
                self._policy,
                sleep=self._sleep,
                clock=self._clock,
                rng=self._rng,
            )
        except Transient as error:
            wait = f" (it asks to wait {error.retry_after_s:.0f} s)" if error.retry_after_s else ""
            raise ModelUnavailable(
                f"model {self._name} gave no answer: {error.what}{wait}",
                where=self._base_url,
                fix="run the same command again later; nothing is lost",
            ) from None
        return replace(completion, latency_s=self._clock() - start)

    def _attempt(self, request: ModelRequest) -> Completion:
        """One try, repeated at once where the server only dislikes a parameter's name."""
        while True:
            sent = self._parameters(request)
            try:
                raw = self._client.chat.completions.with_raw_response.create(**sent)
                answer = parse_body(raw.content, self._name)
            except openai.APITimeoutError:
                raise Transient("it did not answer in time") from None
            except openai.APIStatusError as error:
                if not self._adapt(error, sent):
                    self._give_up(error)
            except openai.APIConnectionError as error:
                cause = error.__cause__ or error
                raise Transient(f"no connection: {self._safe(str(cause))}") from None
            except BadBody as error:
                raise Transient(self._safe(str(error))) from None
            else:
                request_id = raw.headers.get("x-request-id") or answer.provider_request_id
                usage = self._price.settle(answer.usage) if self._price else answer.usage
                return replace(answer, usage=usage, provider_request_id=request_id)

    def _parameters(self, request: ModelRequest) -> dict[str, Any]:
        limit = "max_completion_tokens" if self._renames_max_tokens else "max_tokens"
        sent: dict[str, Any] = {
            "model": self._name,
            "messages": [
                {"role": "system", "content": request.system},
                {"role": "user", "content": request.user},
            ],
            limit: request.max_output_tokens,
        }
        if not self._drops_temperature:
            sent["temperature"] = request.temperature
        return sent

    def _adapt(self, error: openai.APIStatusError, sent: Mapping[str, Any]) -> bool:
        """Whether another form of the request may be accepted; reasoning models need one."""
        if error.status_code not in (400, 422):
            return False
        message = error_text(error.response.content).lower()
        with self._lock:
            if "max_tokens" in sent and "max_completion_tokens" in message:
                self._renames_max_tokens = True
                return True
            if "temperature" in sent and "temperature" in message:
                self._drops_temperature = True
                return True
        return False

    def _give_up(self, error: openai.APIStatusError) -> None:
        """Raise what a status means."""
        status, said = error.status_code, self._safe(error_text(error.response.content))
        what = f"HTTP {status}: {said}" if said else f"HTTP {status}"
        if status == 429 and "insufficient_quota" in said:
            raise ModelUnavailable(
                f"the quota of this key is used up: {what}",
                where=self._base_url,
                fix="add credit with the provider, then run the same command again",
            ) from None
        if status in _TRANSIENT or status >= 500:
            raise Transient(
                what,
                retry_after_s=self._retry_after_s(error),
                overloaded=status in _OVERLOADED,
            ) from None
        raise ModelRefused(
            f"model {self._name} refuses the request: {what}",
            where=self._base_url,
            fix=f"check {_CHECK.get(status, _CHECK[400])}",
        ) from None

    @staticmethod
    def _retry_after_s(error: openai.APIStatusError) -> float | None:
        """Seconds in Retry-After, which is a number or a date; None where it is neither."""
        value = error.response.headers.get("retry-after", "")
        try:
            return max(0.0, float(value))
        except ValueError:
            pass
        try:
            then = email.utils.parsedate_to_datetime(value)
            now = email.utils.parsedate_to_datetime(error.response.headers["date"])
            return max(0.0, (then - now).total_seconds())
        except (ValueError, TypeError, KeyError):
            return None

    def _safe(self, text: str) -> str:
        """A server's words fit for a message: one line, bounded, printable, without the key."""
        line = " ".join(text.split())
        line = "".join(c if c.isprintable() else "?" for c in line)
        if self._key:
            line = line.replace(self._key, "[key]")
        return line if len(line) <= 300 else line[:299] + "…"

"""What is asked of a model and what comes back, whoever the provider is.

Contract: `complete` blocks until there is an answer or a typed error (`llm.errors`). An empty
answer is an answer. Safe to call from several threads. Knows no strategy and no prompt template.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol

from pike_hpc.records import Role, Usage, digest


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One question to a model."""

    role: Role
    system: str
    user: str
    temperature: float
    max_output_tokens: int
    """Reasoning included, where the provider counts it."""
    sample: int = 0
    """Tells apart equal questions of one decision, such as a repetition after a loss."""
    request_key: str = ""
    """Names the decision that asks; scripts and cassettes look answers up by it."""

    def digest(self, model: str) -> str:
        """sha256 of model, messages and sampling parameters: equal for equal questions."""
        parameters = {"temperature": self.temperature, "max_output_tokens": self.max_output_tokens}
        return digest(model, self.system, self.user, json.dumps(parameters, sort_keys=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """An answer."""

    text: str
    finish_reason: str
    """As the provider gives it: stop, length, content_filter; "" where it gives none."""
    usage: Usage
    latency_s: float = 0.0
    """All tries and the waits between them."""
    provider_request_id: str = ""


class LanguageModel(Protocol):
    """A model that answers."""

    @property
    def name(self) -> str:
        """What journal and ledger call it."""

    def complete(self, request: ModelRequest) -> Completion:
        """The answer. Raises ModelRefused or ModelUnavailable."""

    def max_cost_usd(self, request: ModelRequest) -> float:
        """Dollars that the answer may cost at most; 0 where nothing is charged."""

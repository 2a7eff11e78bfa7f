"""LateModel: a model whose client is made when it is first asked.

The openai package takes half a second and 40 MB to import: an agent that only looks whether a
verdict has come shall not wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pike_hpc.llm.prices import Price
from pike_hpc.llm.request import Completion, LanguageModel, ModelRequest


class LateModel:
    """Says name and ceiling by itself, and has `make` make the rest at the first question."""

    def __init__(self, name: str, price: Price | None, make: Callable[[], LanguageModel]) -> None:
        self._name, self._price, self._make = name, price, make
        self._made: LanguageModel | None = None
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The provider's name of the model."""
        return self._name

    def max_cost_usd(self, request: ModelRequest) -> float:
        """The ceiling by the price table; 0 without a price."""
        return self._price.ceiling_usd(request) if self._price else 0.0

    def complete(self, request: ModelRequest) -> Completion:
        """The made model's answer; several threads may ask at once."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
        return self._made.complete(request)

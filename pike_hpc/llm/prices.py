"""Prices: what a query cost and what it may cost, from a dated table of the package.

Contract: a model in the table, or in the user's file of the same form, is priced. One that is
in neither is an error where its provider charges, and free and marked `priced: false` where it
is a server of one's own. Knows no provider's client.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Annotated

from pike_hpc.config.schema import AtLeast, read
from pike_hpc.config.versions import check_version
from pike_hpc.config.yaml_source import parse_mapping, read_file
from pike_hpc.llm.request import ModelRequest
from pike_hpc.records import Usage, UsageError

_MILLION = 1e6

_ASCII_PER_TOKEN = 3
"""Code and English have about four characters a token; the ceiling assumes fewer."""

_MESSAGE_TOKENS = 64
"""Added by chat templates around the two messages, generously."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Dollars per million tokens of one model."""

    model: str
    input_usd: Annotated[float, AtLeast(0)]
    output_usd: Annotated[float, AtLeast(0)]
    """Reasoning included."""
    as_of: str
    """The day on which the source said so."""
    source: str
    cached_usd: Annotated[float, AtLeast(0)] | None = None
    """For input tokens served from a cache; null: as any other input."""

    def settle(self, usage: Usage) -> Usage:
        """The usage with what it cost."""
        cached = self.input_usd if self.cached_usd is None else self.cached_usd
        fresh = max(0, usage.input_tokens - usage.cached_tokens)
        dollars = (
            fresh * self.input_usd
            + usage.cached_tokens * cached
            + usage.output_tokens * self.output_usd
        )
        return replace(usage, cost_usd=dollars / _MILLION, priced=True)

    def ceiling_usd(self, request: ModelRequest) -> float:
        """What the request may cost at most: its text at few characters a token, full output."""
        tokens = max_input_tokens(request.system + request.user)
        highest = max(self.input_usd, self.cached_usd or 0.0)
        return (tokens * highest + request.max_output_tokens * self.output_usd) / _MILLION


@dataclass(frozen=True, slots=True, kw_only=True)
class _PriceFile:
    """A price table as written."""

    schema_version: int
    prices: tuple[Price, ...]


def load_prices(override: Path | None = None) -> Mapping[str, Price]:
    """Prices by model: the package's, then those of the user's file. Raises UsageError."""
    name = "prices.yaml"
    shipped = resources.files("pike_hpc.llm").joinpath(name).read_text("utf-8")
    nodes = [parse_mapping(shipped, name)]
    if override is not None:
        nodes.append(read_file(override))
    for node in nodes:
        check_version(node, "price")
    return {price.model: price for node in nodes for price in read(_PriceFile, node, {}).prices}


def price_of(model: str, *, own_server: bool, override: Path | None = None) -> Price | None:
    """The price of a model; None for an unknown one on a server of one's own."""
    prices = load_prices(override)
    if model in prices or own_server:
        return prices.get(model)
    raise UsageError(
        f"no price is known for model {model!r}, so no budget in dollars can be kept",
        where="models: model",
        valid=", ".join(sorted(prices)),
        fix=f"write its price to {override or '~/.config/pike-hpc/prices.yaml'} as in "
        "pike_hpc/llm/prices.yaml (model, input_usd, output_usd, as_of, source)",
    )


def max_input_tokens(text: str) -> int:
    """A ceiling for the tokens of a text: few ASCII characters a token, a byte a token beyond."""
    total = len(text.encode("utf-8", "surrogatepass"))
    plain = sum(character.isascii() for character in text)
    return math.ceil(plain / _ASCII_PER_TOKEN) + (total - plain) + _MESSAGE_TOKENS

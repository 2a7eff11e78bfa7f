"""Bodies of chat completions: the answer in the bytes that a server sent, or BadBody.

Servers that call themselves compatible leave out or change what they like; only the text of the
first choice is needed, all else has a default.
"""

from __future__ import annotations

import json
from typing import Any

from pike_hpc.llm.request import Completion
from pike_hpc.records import Usage


class BadBody(Exception):
    """Bytes that hold no answer."""


def parse_body(body: bytes, model: str) -> Completion:
    """The first choice of a response. Raises BadBody."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise BadBody(f"the answer is not JSON: {_glimpse(body)}") from None
    choices = data.get("choices") if isinstance(data, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise BadBody(f"the answer holds no choices: {_glimpse(body)}")
    message = choices[0].get("message")
    content = message.get("content") if isinstance(message, dict) else None
    return Completion(
        text=_text(content),
        finish_reason=_string(choices[0].get("finish_reason")),
        usage=_usage(data.get("usage"), model),
        provider_request_id=_string(data.get("id")),
    )


def error_text(body: bytes) -> str:
    """What an error body says, its code first; "" where it says nothing readable.

    Gemini's endpoint wraps it into a list.
    """
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return _glimpse(body) if body else ""
    if isinstance(data, list) and len(data) == 1:
        data = data[0]
    error = data.get("error", data) if isinstance(data, dict) else data
    if isinstance(error, dict):
        words = [_string(error.get("code")), _string(error.get("message"))]
        return ": ".join(word for word in words if word)
    return _string(error)


def _text(content: Any) -> str:
    """A message's content: a string, or parts of which those of text count."""
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(part for part in parts if isinstance(part, str))
    return _string(content)


def _usage(data: Any, model: str) -> Usage:
    usage = data if isinstance(data, dict) else {}
    sent = _count(usage, "prompt_tokens")
    # Gemini leaves thoughts out of completion_tokens but not out of the total, and bills them.
    thoughts_included = _count(usage, "total_tokens") - sent
    return Usage(
        model=model,
        input_tokens=sent,
        cached_tokens=min(sent, _count(usage.get("prompt_tokens_details"), "cached_tokens")),
        output_tokens=max(_count(usage, "completion_tokens"), thoughts_included),
        reasoning_tokens=_count(usage.get("completion_tokens_details"), "reasoning_tokens"),
        priced=False,
    )


def _count(data: Any, key: str) -> int:
    value = data.get(key) if isinstance(data, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _string(value: Any) -> str:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _glimpse(body: bytes) -> str:
    return repr(body[:80].decode("utf-8", "replace"))

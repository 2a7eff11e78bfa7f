"""make_model: the model that a workflow's `models` entry names."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from pike_hpc.llm.cassette import CassetteModel, RecordingModel
from pike_hpc.llm.late import LateModel
from pike_hpc.llm.prices import price_of
from pike_hpc.llm.request import LanguageModel
from pike_hpc.llm.retry import RetryPolicy, Waits
from pike_hpc.llm.scripted import ScriptedModel, load_script
from pike_hpc.records import UsageError

PROVIDERS = ("openai", "scripted", "cassette")


def make_model(
    *,
    provider: str,
    model: str,
    base_url: str | None = None,
    key: str | None = None,
    prices: Path | None = None,
    timeout_s: float = 600.0,
    record: Path | None = None,
    policy: RetryPolicy | None = None,
    waits: Waits | None = None,
) -> LanguageModel:
    """The model of one entry. Sends nothing. Raises UsageError.

    `prices` is the user's price file, `record` a cassette to which all answers are appended,
    `policy` how long a provider in trouble is waited for, `waits` what can end that early.
    """
    made: LanguageModel
    if provider == "scripted":
        made = ScriptedModel(load_script(model), name=Path(model).stem)
    elif provider == "cassette":
        made = CassetteModel(Path(model))
    elif provider == "openai":
        made = _openai(model, base_url, key, prices, timeout_s, policy, waits)
    else:
        raise UsageError(
            f"no provider {provider!r}", where="models: provider", valid=", ".join(PROVIDERS)
        )
    return RecordingModel(made, record) if record is not None else made


def _openai(
    model: str,
    base_url: str | None,
    key: str | None,
    prices: Path | None,
    timeout_s: float,
    policy: RetryPolicy | None,
    waits: Waits | None,
) -> LateModel:
    if base_url is None and not key:
        raise UsageError(
            "no API key for provider openai",
            where="models: key_env",
            fix="set the variable that key_env names, or base_url for a server of your own",
        )
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise UsageError(
            "the API key holds characters that no key has",
            where="models: key_env",
            fix="look for a line break, quote or space that was pasted with it",
        )
    parts = urlsplit(base_url or "")
    if base_url is not None and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise UsageError(
            f"base_url {base_url!r} is no address",
            where="models: base_url",
            valid="http://HOST[:PORT]/v1 or https://HOST/v1",
        )
    price = price_of(model, own_server=base_url is not None, override=prices)

    def make() -> LanguageModel:
        from pike_hpc.llm.openai_model import OPENAI_URL, OpenAIModel  # noqa: PLC0415 - it is slow

        return OpenAIModel(
            model,
            key=key,
            base_url=base_url or OPENAI_URL,
            price=price,
            timeout_s=timeout_s,
            policy=policy,
            sleep=(waits or Waits()).sleep,
        )

    return LateModel(model, price, make)

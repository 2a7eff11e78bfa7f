"""Prices: the shipped table, the user's file, ceilings that hold, and what is unpriced."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pike_hpc.llm import ModelRequest, make_model, price_of
from pike_hpc.llm.prices import Price, max_input_tokens
from pike_hpc.records import Role, Usage, UsageError

FLAT = Price(model="m", input_usd=2.0, output_usd=8.0, cached_usd=0.5, as_of="d", source="s")


def request(user="", max_output_tokens=1000):
    return ModelRequest(
        role=Role.FIX, system="", user=user, temperature=1, max_output_tokens=max_output_tokens
    )


def test_cost_counts_cached_input_once_and_at_its_own_rate():
    usage = Usage(model="m", input_tokens=1_000_000, cached_tokens=400_000, output_tokens=250_000)
    settled = FLAT.settle(usage)
    assert settled.cost_usd == pytest.approx(0.6 * 2.0 + 0.4 * 0.5 + 0.25 * 8.0)
    assert settled.priced


def test_the_ceiling_has_the_whole_output_and_a_generous_prompt():
    ceiling = FLAT.ceiling_usd(request("x" * 3_000_000, 1_000_000))
    assert ceiling == pytest.approx(2.0 + 8.0, rel=1e-3)
    assert ceiling > 10.0


@given(st.text())
def test_every_byte_beyond_ascii_may_be_a_token(text):
    assert max_input_tokens(text) >= sum(len(c.encode()) for c in text if not c.isascii())
    assert max_input_tokens(text) >= len(text) / 3


def test_the_shipped_table_is_dated_and_sourced():
    pro = price_of("gemini-2.5-pro", own_server=False)
    assert (pro.input_usd, pro.output_usd) == (1.25, 10.0)
    assert pro.as_of
    assert pro.source
    assert price_of("gemini-2.5-flash", own_server=True).output_usd == 2.5


def test_a_users_file_adds_and_replaces(tmp_path):
    file = tmp_path / "prices.yaml"
    file.write_text(
        "schema_version: 1\nprices:\n"
        "  - {model: gpt-x, input_usd: 1, output_usd: 2, as_of: '2026-01-01', source: invoice}\n"
        "  - {model: gemini-2.5-pro, input_usd: 0, output_usd: 3, as_of: a, source: b}\n"
    )
    assert price_of("gpt-x", own_server=False, override=file).output_usd == 2
    assert price_of("gemini-2.5-pro", own_server=False, override=file).output_usd == 3
    assert price_of("gemini-2.5-flash", own_server=False, override=file).output_usd == 2.5


def test_an_unknown_model_is_an_error_where_it_is_charged_for(tmp_path):
    assert price_of("llama", own_server=True) is None
    (tmp_path / "p.yaml").write_text("schema_version: 1\nprices: []\n")
    with pytest.raises(UsageError) as error:
        price_of("gpt-x", own_server=False, override=tmp_path / "p.yaml")
    for part in ("no price is known for model 'gpt-x'", "gemini-2.5-pro", "p.yaml"):
        assert part in str(error.value)


def test_a_wrong_price_file_names_its_line(tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text("schema_version: 1\nprices:\n  - {model: x, input_usd: -1}\n")
    with pytest.raises(UsageError, match=r"p\.yaml:3"):
        price_of("x", own_server=False, override=file)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"provider": "anthropic"}, "valid: openai, scripted, cassette"),
        ({"provider": "openai"}, "no API key"),
        ({"provider": "openai", "key": "sk\nx"}, "characters that no key has"),
        ({"provider": "openai", "key": "sk-x"}, "no price is known"),
        ({"provider": "openai", "base_url": "localhost:8000"}, "is no address"),
        ({"provider": "scripted"}, "no script 'gpt-x'"),
        ({"provider": "cassette"}, "cannot read the cassette"),
    ],
)
def test_wrong_entries_are_one_message_without_the_key(arguments, words):
    with pytest.raises(UsageError) as error:
        make_model(model="gpt-x", **arguments)
    assert words in str(error.value)
    assert "sk" not in str(error.value).replace("asks", "")

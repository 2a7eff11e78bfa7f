"""A workflow file means what the contract says, or one message says where it does not."""

from pathlib import Path

import pytest

from pike_hpc.config import Workflow, load_workflow
from pike_hpc.records import Tier, UsageError, Variant

CONTRACT = """\
schema_version: 1
name: level3
tasks:
  {suite: level3-pike, ids: "1-50", variant: admitted, shape_overrides: {"8": {batch_size: 2}}}
search: {strategy: default, seed: 0, options: {}}
budget: {queries_per_task: 300, evaluations_per_task: 400, max_usd: 50, max_gpu_hours: 8,
  wall_minutes: 0}
models: {optimise: {provider: openai, model: gpt-x, base_url: null, key_env: OPENAI_API_KEY,
  temperature: 0.8, max_output_tokens: 32000}}
evaluate: {devices: [auto], tiers: [fp32, tf32, half], min_isolation: L3, timeout_s: 900}
workers: {count: 4, max_idle_s: 600}
"""

SMALLEST = "schema_version: 1\nname: small\ntasks: {suite: level3-pike}\n"


def load(tmp_path: Path, text: str) -> Workflow:
    file = tmp_path / "w.yaml"
    file.write_text(text)
    return load_workflow(file)


def refused(tmp_path: Path, text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, text)
    error = caught.value
    assert error.where is not None
    assert error.where.startswith(f"{tmp_path}/w.yaml:")
    return error


def line_of(error: UsageError) -> int:
    return int((error.where or "").rpartition(":")[2])


def test_the_contracts_example(tmp_path: Path) -> None:
    workflow = load(tmp_path, CONTRACT)
    assert workflow.name == "level3"
    assert workflow.tasks.ids == "1-50"
    assert workflow.tasks.variant is Variant.ADMITTED
    assert workflow.tasks.shape_overrides == {"8": {"batch_size": 2}}
    assert workflow.budget.max_usd == 50.0
    assert workflow.evaluate.tiers == (Tier.FP32, Tier.TF32, Tier.HALF)
    assert workflow.workers.count == 4
    model = workflow.models["optimise"]
    assert (model.model, model.base_url, model.temperature) == ("gpt-x", None, 0.8)
    assert workflow.model_for("fix") is model
    assert workflow.asks_models


def test_what_is_optional_has_a_default(tmp_path: Path) -> None:
    workflow = load(tmp_path, SMALLEST)
    assert workflow.search.strategy == "default"
    assert workflow.tasks.ids is None
    assert workflow.budget.queries_per_task == 300
    assert workflow.evaluate.devices == ("auto",)
    assert workflow.models == {}
    assert not workflow.asks_models


def test_a_model_given_as_null_is_absent(tmp_path: Path) -> None:
    text = SMALLEST + "models: {optimise: {provider: scripted, model: s}, fix: null}\n"
    assert set(load(tmp_path, text).models) == {"optimise"}


SCRIPTED = "models: {optimise: {provider: scripted, model: s}}\n"


@pytest.mark.parametrize(
    ("more", "level"),
    [
        ("", "L1"),
        ("search: {strategy: rules}\n" + SCRIPTED, "L1"),
        (SCRIPTED, "L3"),
        (SCRIPTED + "evaluate: {min_isolation: L2}\n", "L2"),
        ("evaluate: {min_isolation: L3}\n", "L3"),
    ],
)
def test_what_a_model_writes_needs_l3_unless_less_is_named(
    tmp_path: Path, more: str, level: str
) -> None:
    assert load(tmp_path, SMALLEST + more).evaluate.min_isolation == level


@pytest.mark.parametrize(
    ("more", "says", "helps"),
    [
        ("buget: {max_usd: 1}\n", "unknown key 'buget'", "did you mean 'budget'?"),
        ("budget: {max_us: 1}\n", "unknown key 'budget.max_us'", "did you mean 'max_usd'?"),
        ("models: {optimize: {provider: scripted, model: s}}\n", "'models.optimize'", "optimise"),
        ("budget: {wall_minutes: 12:30:00}\n", "base 60", "write minutes, or quote it"),
        ("budget: {wall_minutes: 04:00:00}\n", "base 60", "write minutes"),
        ("budget: {queries_per_task: 12:30}\n", "base 60", "write minutes"),
        ("search: {strategy: no}\n", "expected text", 'quote it: "no"'),
        ("evaluate: {devices: [on]}\n", "evaluate.devices[0]", 'quote it: "on"'),
        ("search: {options: {when: 1:30}}\n", "base 60", "quote it"),
        ("workers: {count: yes}\n", "expected a whole number, found 'yes'", None),
        ("workers: {count: true}\n", "expected a whole number", None),
        ('workers: {count: "4"}\n', "expected a whole number, found the text '4'", None),
        ("workers: {count: 4.0}\n", "expected a whole number", None),
        ("workers: {count: 1_000}\n", "expected a whole number", None),
        ("workers: {count: 010}\n", "expected a whole number", None),
        ("workers: {count: 0}\n", "0 is less than 1", None),
        ("workers: {count: [4]}\n", "found a list", None),
        ("workers: {count:}\n", "found nothing", None),
        ("workers: 4\n", "expected a mapping", None),
        ("workers:\n", "expected a mapping", None),
        ("budget: {max_usd: -1}\n", "-1 is less than 0", None),
        ("budget: {max_usd: .inf}\n", "expected a number", None),
        ("budget: {max_usd: 1e999}\n", "expected a number", None),
        ("evaluate: {devices: auto}\n", "expected a list", None),
        ("evaluate: {devices: []}\n", "at least 1", None),
        ("evaluate: {devices: [GPU 0]}\n", "not a device", None),
        ("evaluate: {tiers: [fp32, fp16]}\n", "'fp16' is not valid", None),
        ("evaluate: {tiers: [half, half]}\n", "twice", None),
        ("evaluate: {min_isolation: L5}\n", "'L5' is not valid", None),
        ("search: {strategy: rule}\n", "'rule' is not valid", "did you mean 'rules'?"),
        ("search: {strategy: pike_o}\n", "not in this version", "pike_b"),
        ("search: {strategy: pike_b}\n", "models.optimise", "rules"),
        ("search: {options: {a: [1]}}\n", "search.options.a: expected text, a number", None),
        ("search: {options: {a: null}}\n", "found nothing", None),
        ("models: {fix: {provider: scripted, model: s}}\n", "models.optimise is missing", None),
        ("models: {optimise: {model: s}}\n", "missing key 'models.optimise.provider'", "provider"),
        ("models: {optimise: {provider: google, model: g}}\n", "not in this version", "base_url"),
        ("models: {optimise: {provider: x, model: g}}\n", "'x' is not valid", None),
        ("models: {optimise: {provider: openai, model: g}}\n", "max_usd is required", "max_usd"),
    ],
)
def test_a_wrong_value_is_one_message(
    tmp_path: Path, more: str, says: str, helps: str | None
) -> None:
    error = refused(tmp_path, SMALLEST + more)
    assert says in error.what
    assert line_of(error) == 4
    if helps:
        assert helps in (error.fix or "")


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("schema_version: 1\nname: x\n", 1, "missing key 'tasks'"),
        ("schema_version: 1\ntasks: {suite: s}\n", 1, "missing key 'name'"),
        ("name: x\ntasks: {suite: s}\n", 1, "missing key 'schema_version'"),
        ("name: x\nschema_version: 2\nnew_key: 1\n", 2, "needs a newer pike-hpc"),
        ("name: x\nschema_version: 0\n", 2, "not read any more"),
        ("name: x\nschema_version: one\n", 2, "whole number"),
        ("schema_version: 1\nname: a/b\ntasks: {suite: s}\n", 2, "not a name"),
        ("schema_version: 1\nname: 7\ntasks: {suite: s}\n", 2, "expected text"),
        ("schema_version: 1\nname: x\ntasks: {}\n", 3, "exactly one of suite and path"),
        ("schema_version: 1\nname: x\ntasks: {suite: s, path: p}\n", 3, "exactly one"),
        ("schema_version: 1\nname: x\ntasks: {suite: s, ids: 4}\n", 3, "expected text"),
        ("schema_version: 1\nname: x\ntasks: {suite: s, variant: old}\n", 3, "'old' is not valid"),
        (
            'schema_version: 1\nname: x\ntasks:\n  suite: s\n  shape_overrides: {"8": {b: 0}}\n',
            5,
            "tasks.shape_overrides.8.b: 0 is less than 1",
        ),
    ],
)
def test_a_wrong_file_is_one_message(tmp_path: Path, text: str, line: int, says: str) -> None:
    error = refused(tmp_path, text)
    assert says in error.what
    assert line_of(error) == line


def test_an_unknown_key_lists_the_valid_ones(tmp_path: Path) -> None:
    error = refused(tmp_path, SMALLEST + "workers: {number: 3}\n")
    assert error.valid == "count, max_idle_s, max_node_hours"
    assert error.exit_code == 2


OPENAI = "models: {{optimise: {{provider: openai, model: g, base_url: {url}}}}}\n"


@pytest.mark.parametrize(
    ("url", "paid"),
    [
        ("null", True),
        ('"https://api.openai.com/v1"', True),
        ('"https://generativelanguage.googleapis.com/v1beta/openai/"', True),
        ('"http://localhost:8000/v1"', False),
        ('"https://llm.example.org/v1"', False),
    ],
)
def test_max_usd_is_required_where_money_is_charged(tmp_path: Path, url: str, paid: bool) -> None:
    text = SMALLEST + OPENAI.format(url=url)
    if paid:
        assert "max_usd" in refused(tmp_path, text).what
        text += "budget: {max_usd: 5}\n"
    assert load(tmp_path, text).models["optimise"].is_paid is paid


def test_rules_alone_spend_nothing_so_need_no_limit(tmp_path: Path) -> None:
    text = SMALLEST + OPENAI.format(url="null") + "search: {strategy: rules}\n"
    assert not load(tmp_path, text).asks_models


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://host/v1", "http://", "http://u:p@host/v1", "http://host:x/v1"]
)
def test_a_base_url_is_an_address_without_a_secret_in_it(tmp_path: Path, url: str) -> None:
    error = refused(tmp_path, SMALLEST + OPENAI.format(url=f'"{url}"'))
    assert "models.optimise.base_url" in error.what
    assert "u:p" not in str(error)

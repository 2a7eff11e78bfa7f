"""The scripted model: which answer it gives, and that the shipped script shows every kind."""

import pytest

from pike_hpc.llm import ModelRequest, ScriptedModel, load_script
from pike_hpc.proposers.agents import NoProgram, Program, extract_program, parse_ideas, render
from pike_hpc.records import Role, UsageError

TASK = "import torch\n\n\nclass Model(torch.nn.Module):\n    pass\n"


def request(role=Role.OPTIMISE, *, key="t/p0/b0/r0", sample=0, task=TASK):
    prompt = render(
        role, task_source=task, device="cpu", torch_version="2", tiers=("fp32",), parent_source=TASK
    )
    return ModelRequest(
        role=role,
        system=prompt.system,
        user=prompt.user,
        temperature=0.8,
        max_output_tokens=1,
        sample=sample,
        request_key=key,
    )


@pytest.fixture
def shipped():
    return ScriptedModel(load_script("default"))


def script(tmp_path, text):
    path = tmp_path / "s.yaml"
    path.write_text(text)
    return ScriptedModel(load_script(str(path)))


def test_the_shipped_script_shows_every_kind_of_answer_in_the_first_phase(shipped):
    found = []
    for branch in range(8):
        completion = shipped.complete(request(key=f"t/p0/b{branch}/r0"))
        program = extract_program(completion.text, completion.finish_reason)
        found.append(program.reason if isinstance(program, NoProgram) else "program")
    assert found[0] == found[1] == found[6] == found[7] == "program"
    assert "cut off" in found[2]
    assert "syntax error" in found[3]
    assert "empty" in found[4]
    assert "no complete" in found[5]


def test_its_programs_hold_the_task_of_the_prompt(shipped):
    for key in ("t/p0/b0/r0", *(f"t/p{p}/b{b}/r0" for p in (1, 2) for b in range(10))):
        completion = shipped.complete(request(key=key))
        program = extract_program(completion.text, completion.finish_reason)
        assert isinstance(program, Program)
        assert program.source.startswith(TASK)
        assert "class ModelNew(Model):" in program.source


def test_later_answers_vary_but_not_for_the_same_request(shipped):
    keys = [f"t/p3/b{b}/r0" for b in range(10)]
    texts = [shipped.complete(request(key=key)).text for key in keys]
    assert len(set(texts)) == 3
    assert texts == [shipped.complete(request(key=key)).text for key in keys]


def test_the_shipped_ideas_can_be_read(shipped):
    completion = shipped.complete(request(Role.BRAINSTORM, key="t/ideas"))
    assert len(parse_ideas(completion.text, 10)) == 5


def test_repairs_are_programs_but_for_one(shipped):
    for key, kind in (("t/p0/b4/r1", NoProgram), ("t/p0/b2/r1", Program)):
        completion = shipped.complete(request(Role.FIX, key=key))
        assert isinstance(extract_program(completion.text, completion.finish_reason), kind)


def test_the_first_pattern_that_fits_wins_and_the_rest_is_for_all_others(tmp_path):
    model = script(
        tmp_path,
        "schema_version: 1\nanswers:\n"
        "  - {role: optimise, when: '*/b1/*', text: one}\n"
        "  - {role: optimise, when: '*/b?/r0', text: two, finish_reason: length}\n"
        "  - {role: optimise, text: rest}\n",
    )
    assert model.complete(request(key="t/p0/b1/r0")).text == "one"
    second = model.complete(request(key="t/p0/b2/r0"))
    assert (second.text, second.finish_reason) == ("two", "length")
    assert model.complete(request(key="t/p0/b2/r1")).text == "rest"
    assert model.complete(request(Role.FIX)).text == ""
    assert model.name == "scripted:default"


def test_the_task_is_the_first_model_of_the_prompt(shipped):
    other = "class Model:\n    other = True\n"
    completion = shipped.complete(request(task=other))
    assert other in completion.text
    assert TASK not in completion.text
    none = ModelRequest(
        role=Role.OPTIMISE, system="", user="no code", temperature=0, max_output_tokens=1
    )
    assert "class Model:" not in shipped.complete(none).text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("answers: []\n", "missing key 'schema_version'"),
        ("schema_version: 9\nanswers: []\n", "needs a newer pike-hpc"),
        ("schema_version: 1\nanswers: [{role: optimize, text: x}]\n", "did you mean 'optimise'"),
        ("schema_version: 1\nanswers: [{role: fix, txt: x}]\n", "did you mean 'text'"),
        ("schema_version: 1\nanswers: [{role: fix}]\n", "missing key"),
    ],
)
def test_a_wrong_script_is_one_message_with_its_line(tmp_path, text, words):
    with pytest.raises(UsageError) as error:
        script(tmp_path, text)
    assert words in str(error.value)
    assert "s.yaml:" in str(error.value)


def test_a_script_that_is_not_there():
    with pytest.raises(UsageError, match=r"no script 'nowhere\.yaml'"):
        load_script("nowhere.yaml")

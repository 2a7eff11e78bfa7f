"""What an answer holds: the last complete program, or the reason why there is none; ideas."""

import pytest

from pike_hpc.proposers.agents import NoProgram, Program, extract_program, parse_ideas

GOOD = "class ModelNew:\n    pass\n"


def block(source=GOOD, language="python"):
    return f"```{language}\n{source}```\n"


def test_the_last_program_wins():
    text = "I quote:\n" + block("class ModelNew:\n    old = 1\n") + "better:\n" + block()
    assert extract_program(text, "stop") == Program(GOOD)


def test_blocks_that_are_no_program_are_passed_over():
    text = block() + block("x = 1\n") + block("rm -rf /\n", "bash") + block("def f(:\n")
    assert extract_program(text, "stop") == Program(GOOD)


@pytest.mark.parametrize("language", ["python", "py", "Python", "", "python title=a.py"])
def test_ways_to_mark_python(language):
    assert extract_program(block(language=language), "stop") == Program(GOOD)


def test_an_assignment_can_define_it():
    source = "class Fast:\n    pass\n\nModelNew = Fast\n"
    assert extract_program(block(source), "stop") == Program(source)


def test_longer_fences_hold_shorter_ones():
    source = 'class ModelNew:\n    """\n```python\n```\n    """\n'
    assert extract_program(f"````python\n{source}````", "stop") == Program(source)


def test_a_complete_program_before_the_limit_counts():
    assert extract_program(block() + "and so on and", "length") == Program(GOOD)


@pytest.mark.parametrize(
    ("text", "finish_reason", "words"),
    [
        ("", "stop", "the answer is empty"),
        (" \n", "length", "token limit was used up before any text"),
        ("I can't help.", "stop", "no complete ```python block"),
        ("I think", "length", "no complete ```python block and was cut off by the token limit"),
        (block() + "```python\nclass ModelNew:", "length", "cut off by the token limit"),
        ("```python\nclass ModelNew:", "stop", "last code block was not closed"),
        (block("class ModelNew(:\n"), "stop", "syntax error in line 1"),
        (block("class Model:\n    pass\n"), "stop", "does not define class ModelNew"),
        (block("def f():\n    class ModelNew: pass\n"), "stop", "does not define class"),
        (block("x = 1\0\nclass ModelNew: pass\n"), "stop", "can't be parsed|syntax error"),
        (block("#" * 600_000 + "\n" + GOOD), "stop", "longer than 500000 bytes"),
        (block("x = " + "(" * 5000 + "\n"), "stop", "syntax error|can't be parsed"),
        (block("x = " + "-" * 100_000 + "1\n"), "stop", "can't be parsed|does not define|syntax"),
    ],
)
def test_why_there_is_no_program(text, finish_reason, words):
    found = extract_program(text, finish_reason)
    assert isinstance(found, NoProgram)
    assert any(word in found.reason for word in words.split("|")), found.reason
    assert found.reason.startswith("No program: ")
    assert found.reason.endswith(".")


@pytest.mark.parametrize(
    "text",
    [
        "- fuse a\n- fold b\n- pack c",
        "* fuse a\n* fold b\n* pack c\n",
        "1. fuse a\n2. fold b\n3. pack c",
        "1) fuse a\n\n2) fold b\n\n3) pack c",
        "Here are ideas:\n\n- **fuse** a\n-   fold b\n  - detail\n- pack c\n\nGood luck!",
        "fuse a\n\nfold b\n\npack c",
        "- fuse\n  a\n- fold b\n- fold b\n- pack c",
    ],
)
def test_lists_and_paragraphs(text):
    ideas = [idea.replace(" - detail", "").replace(" detail", "") for idea in parse_ideas(text, 9)]
    assert ideas == ["fuse a", "fold b", "pack c"]


def test_ideas_are_limited_cleaned_and_bounded():
    assert parse_ideas("- a\n- b\n- c", 2) == ("a", "b")
    assert parse_ideas("", 5) == ()
    assert parse_ideas("- \x1b[31ma\x00", 5) == ("a",)
    assert len(parse_ideas("- " + "x" * 9999, 5)[0]) == 1000

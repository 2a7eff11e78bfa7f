"""Whatever a model writes is read without an exception, and what is shown can't break out."""

import ast
import re

from hypothesis import given
from hypothesis import strategies as st

from pike_hpc.proposers.agents import NoProgram, Program, extract_program, parse_ideas, render
from pike_hpc.proposers.agents.fence import clean, fenced
from pike_hpc.records import Role

PIECES = ["```python\n", "```", "````", "~~~", "\n", "class ModelNew:\n    pass\n", "- ", "1. ",
          "x = (", "\x1b[0m", "\x00", "\ud800", "  ", "\t", "$", "idea"]  # fmt: skip
TEXTS = st.one_of(
    st.text(st.characters()), st.lists(st.sampled_from(PIECES), max_size=30).map("".join)
)


@given(TEXTS, st.sampled_from(["stop", "length", "content_filter", ""]))
def test_any_text_is_a_program_or_a_reason(text, finish_reason):
    found = extract_program(text, finish_reason)
    if isinstance(found, Program):
        assert "ModelNew" in found.source
        ast.parse(found.source)
    else:
        assert isinstance(found, NoProgram)
        assert len(found.reason) < 400


@given(TEXTS, st.integers(0, 5))
def test_any_text_gives_at_most_so_many_ideas_of_one_line(text, limit):
    ideas = parse_ideas(text, limit)
    assert len(ideas) <= limit
    assert len(set(ideas)) == len(ideas)
    for idea in ideas:
        assert idea.strip()
        assert len(idea.splitlines()) == 1
        idea.encode()


@given(TEXTS, TEXTS, TEXTS)
def test_any_log_or_source_keeps_inside_the_prompt(log, source, idea):
    user = render(
        Role.FIX,
        task_source=source,
        device="cpu",
        torch_version="2",
        tiers=("half",),
        log_tail=log,
        failed_source=source,
        idea=idea,
    ).user
    user.encode()
    assert "\x1b" not in user
    assert user.startswith("# The task")
    assert user.endswith("It must define `ModelNew`.\n")


@given(TEXTS)
def test_a_block_ends_only_at_its_own_fence(text):
    block = fenced(clean(text), "python")
    fence = re.match(r"`+", block)[0]
    assert block.count(fence) == 2
    assert block.endswith("\n" + fence)

"""The benchmark's programs: each parses as it should, none is given out twice."""

import ast
import itertools

import pytest
from builders.benchmarks import imported

from pike_hpc.evaluate.screen import screen
from pike_hpc.records import EvalStatus


@pytest.fixture(scope="module")
def mixture():
    with imported("mixture") as module:
        yield module


def test_programs_are_refused_by_the_screen_only_where_they_should_be(mixture):
    for program in mixture.PROGRAMS:
        refusal = screen(program.make(1))
        unparsable = program.name == "Python that does not parse"
        assert (refusal is not None) == unparsable, program.name
        if refusal is not None:
            assert refusal.status in program.expected


def test_two_in_five_honest_programs_on_a_gpu_compile_cuda(mixture):
    honest = [p for p in mixture.deck("cuda") if p.expected == {EvalStatus.PASSED}]
    inline = sum(p.kind == "inline" for p in honest)
    assert 0.35 <= inline / len(honest) <= 0.45
    assert 0.25 <= 1 - len(honest) / len(mixture.deck("cuda")) <= 0.5


def test_no_text_is_dealt_twice_and_a_seed_repeats(mixture):
    deck = mixture.deck("cpu")
    drawn = list(itertools.islice(mixture.dealt(deck, 3), 3 * len(deck)))
    texts = [program.make(number) for program, number in drawn]
    assert len(set(texts)) == len(texts)
    assert drawn == list(itertools.islice(mixture.dealt(deck, 3), 3 * len(deck)))
    assert not any(p.on_cpu is False for p, _ in drawn)


def test_kinds_without_a_compiler_need_none(mixture):
    for program in mixture.deck("cpu", {"torch", "broken"}):
        assert "load_inline" not in program.make(1)
        assert "torch.compile" not in program.make(1)
    with pytest.raises(ValueError, match="no programs"):
        mixture.deck("cpu", {"none"})


def test_a_kernel_text_has_no_placeholder_left(mixture):
    words = ("NUMBER", "EXPR", "DECLARED", "CUDA_TEXT", "CPU_TEXT", "PLAIN")
    for program in mixture.PROGRAMS:
        text = program.make(1)
        names = (
            {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
            if (screen(text) is None)
            else set()
        )
        assert not names & set(words), program.name
        assert not any(f"{word}(" in text or f" {word};" in text for word in words), program.name

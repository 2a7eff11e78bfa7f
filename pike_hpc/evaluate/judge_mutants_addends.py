"""Wrong versions of a call that must fail: of a sum one term alone, or the input as the answer.

A step of diffusion is its input and a little more, and so is a block behind a small gate: what is
written as functions is no module that could be left out.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pike_hpc.evaluate.judge_mutants import LEAST_SHARE, Edit, spread
from pike_hpc.evaluate.judge_operations import (
    COPIES,
    Operations,
    bare,
    is_dense,
    place_of,
    tensors_in,
    written,
)
from pike_hpc.evaluate.judge_scores import without_fast_path

MOST_ADDENDS = 12
"""Terms that are tried, evenly spread: each is a call."""

SUMS = frozenset({"aten::add", "aten::add_", "aten::sub", "aten::sub_", "aten::rsub"})

MOST_LONGER = 4
"""A loop may end by what it adds up: a call of so many times the operations has none that ends."""

MOST_WORKS = 64
"""Behind what a loop adds up lie as many as it took steps: so many are told apart."""

MOVES = frozenset({"aten::roll", "aten::flip", "aten::cat", "aten::constant_pad_nd"})
"""They bring neighbours into place: who reads one has read them all."""
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_MODULES = f"{_TORCH}nn{os.sep}"
"""Of torch's own code what stands for a task's: its layers add, too."""


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the code: all that is added there, in every block and step, is one sum."""

    file: str
    line: int
    instruction: int
    """Of the function's code: a line may have several sums."""


@dataclass(frozen=True, slots=True)
class _Sum:
    """One sum of a call."""

    operation: int
    """Its number."""
    without: tuple[frozenset[int], frozenset[int]]
    """What it is made of without its first term, and without its second."""
    costs: tuple[bool, bool]
    """Whether the terms take more than a function of the other one's numbers."""


def addend_edits(
    call: Callable[[], object],
    weights: Iterable[torch.Tensor],
    *,
    on_gpu: bool,
) -> dict[str, Edit]:
    """Contexts in which a sum of two tensors of one shape is one of them, by what is left.

    Only where the other one takes LEAST_SHARE of the bytes that are read and written, and more than
    functions of each number: who leaves out less gains nothing that a timing would show. Nothing
    where the call can't be watched.

    Args:
        call: of the reference; gives what it answers.
        weights: its parameters and buffers.
        on_gpu: whose process ends where a place is out of range: nothing is left out where floating
            numbers become whole ones.

    Raises:
        OutOfMemoryError: there is no room.
    """
    try:
        stored = {weight.untyped_storage().data_ptr() for weight in weights}
        with without_fast_path(), _Watching(stored) as seen:
            answer = call()
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever a forward does that knows no modes
        return {}
    if on_gpu and seen.rounds:
        return {}
    needed = seen.needed(answer, {})
    on_line: Counter[tuple[str, int]] = Counter()
    found: list[dict[str, Edit]] = []
    for site, sums in seen.sums.items():
        on_line[site.file, site.line] += 1
        place = f"sum {on_line[site.file, site.line]} in {Path(site.file).name}:{site.line}"
        for term, said in enumerate(("first", "second")):
            other = 1 - term
            if not any(one.costs[other] for one in sums):
                continue
            rest = seen.needed(answer, {one.operation: one.without[other] for one in sums})
            if needed - rest >= LEAST_SHARE * needed:
                edit = _leaving(site, term, MOST_LONGER * seen.count)
                found.append({f"{place}, its {said} term alone": edit})
    return {name: edit for edits in spread(found, MOST_ADDENDS) for name, edit in edits.items()}


def inputs_as_answers(
    inputs: Sequence[torch.Tensor], answers: Mapping[int, torch.Tensor]
) -> list[tuple[int, int]]:
    """Which inputs could be given for which answers: the numbers of both, where they are alike."""
    return [
        (number, i)
        for number, answer in answers.items()
        for i, given in enumerate(inputs)
        if given.shape == answer.shape
        and given.is_floating_point() == answer.is_floating_point()
        and given.is_complex() == answer.is_complex()
    ]


class _Watching(Operations):  # type: ignore[no-untyped-call]
    """Notes what is added where, and what it takes.

    All is known by storages, and by who wrote there last: what is written into a part is in the
    whole. What depends on no input takes nothing, such as a mask: it may be made once.
    """

    def __init__(self, stored: set[int]) -> None:
        super().__init__()
        self._stored = stored
        self._makers: dict[int, int] = {}
        """Operations by the addresses that they wrote to last."""
        self._made_of: list[frozenset[int]] = []
        """By operation: those whose numbers it takes."""
        self._moves_bytes: list[int] = []
        """By operation: what it reads and writes."""
        self._works: dict[int, frozenset[int]] = {}
        """By address: what does more than a function of each number, and such functions follow."""
        self._numbers: dict[Any, int] = {}
        """Of works, by what they are."""
        self.sums: dict[Site, list[_Sum]] = {}
        self.rounds = False
        """Whether floating numbers became whole ones: of which places may be made."""

    @property
    def count(self) -> int:
        """Operations so far."""
        return len(self._made_of)

    def needed(self, answer: Any, instead: Mapping[int, frozenset[int]]) -> int:
        """Bytes that are moved for an answer, where some operations are made of something else."""
        wanted = list(self._made_by(tensors_in(answer)))
        seen = set(wanted)
        while wanted:
            operation = wanted.pop()
            more = instead.get(operation, self._made_of[operation]) - seen
            seen |= more
            wanted += more
        return sum(self._moves_bytes[operation] for operation in seen)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tensors_in((args, kwargs))
        works = frozenset[int]().union(*(self._behind(tensor) for tensor in given))
        made_of = self._made_by(given)
        if terms := _terms(func, args):
            self._note(*terms)
        made = func(*args, **kwargs)
        new = written(func, given, made)
        works = self._after(func, works)
        for tensor in new:
            self._works[place_of(tensor)] = works
            if works:
                self._makers[place_of(tensor)] = len(self._made_of)
            else:
                self._makers.pop(place_of(tensor), None)
            if bare(func.name()) in COPIES and not tensor.is_floating_point():
                self.rounds |= any(source.is_floating_point() for source in given)
        self._made_of.append(made_of)
        self._moves_bytes.append(sum(t.numel() * t.element_size() for t in (*given, *new)))
        return made

    def _made_by(self, tensors: Sequence[torch.Tensor]) -> frozenset[int]:
        places = (place_of(tensor) for tensor in tensors)
        return frozenset(self._makers[place] for place in places if place in self._makers)

    def _note(self, first: torch.Tensor, second: torch.Tensor) -> None:
        """Of a sum that is asked for now."""
        works = self._behind(first), self._behind(second)
        found = _Sum(
            operation=len(self._made_of),
            without=(self._made_by([second]), self._made_by([first])),
            costs=(not works[0] <= works[1], not works[1] <= works[0]),
        )
        self.sums.setdefault(_site(), []).append(found)

    def _after(self, func: Any, works: frozenset[int]) -> frozenset[int]:
        """Works behind what an operation makes of what these are behind of."""
        name = bare(func.name())
        if name in MOVES:
            return frozenset(self._number("moved", work) for work in works)
        is_same = name in COPIES or torch.Tag.pointwise in getattr(func, "tags", ())
        if not works or (is_same and len(works) <= MOST_WORKS):
            return works
        return frozenset({self._number("made", len(self._numbers))})

    def _behind(self, tensor: torch.Tensor) -> frozenset[int]:
        """Works behind a tensor: behind a part of a storage it is that part's own."""
        place = place_of(tensor)
        if place in self._works:
            works = self._works[place]
        else:
            works = frozenset(() if place in self._stored else (self._number("given", place),))
        size_bytes = tensor.numel() * tensor.element_size()
        if not is_dense(tensor) or size_bytes == tensor.untyped_storage().nbytes():
            return works
        part = tensor.storage_offset(), tensor.stride()
        return frozenset(self._number(part, work) for work in works)

    def _number(self, kind: Any, of: int) -> int:
        return self._numbers.setdefault((kind, of), len(self._numbers))


class _Leaving(Operations):  # type: ignore[no-untyped-call]
    """Leaves one term of what is added in a place; raises RuntimeError in a call without end."""

    def __init__(self, site: Site, term: int, most: int) -> None:
        super().__init__()
        self._site, self._term, self._left = site, term, most

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("it goes on and on")
        terms = _terms(func, args)
        if terms is None or _site() != self._site:
            return func(*args, **kwargs)
        factors = _factors(bare(func.name()), kwargs.get("alpha", 1))
        alone = terms[self._term] * factors[self._term]  # before it is written over
        return func(*args, **kwargs).copy_(alone)


def _leaving(site: Site, term: int, most: int) -> Edit:
    @contextmanager
    def edit() -> Iterator[None]:
        with without_fast_path(), _Leaving(site, term, most):
            yield

    return edit


def _terms(func: Any, args: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Both terms of a sum of floating tensors of one shape; None of anything else."""
    if bare(func.name()) not in SUMS:
        return None
    first, second = args[:2]
    if not (_is_plain(first) and _is_plain(second)) or first.shape != second.shape:
        return None
    return first, second


def _is_plain(term: Any) -> bool:
    """Whether it is a dense tensor of floating numbers."""
    plain = torch.is_tensor(term) and is_dense(term)
    return plain and (term.is_floating_point() or term.is_complex())


def _factors(name: str, alpha: float) -> tuple[float, float]:
    if name == "aten::rsub":
        return -alpha, 1
    return (1, alpha) if name.startswith("aten::add") else (1, -alpha)


def _site() -> Site:
    """Where the operation that is asked for was called: in a task's code or a layer of torch's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_machinery(frame.f_code.co_filename):
        frame = frame.f_back
    return Site(frame.f_code.co_filename, frame.f_lineno, frame.f_lasti)


def _is_machinery(file: str) -> bool:
    if file == __file__:
        return True
    return file.startswith(_TORCH) and not file.startswith(_MODULES)

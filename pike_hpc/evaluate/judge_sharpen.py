"""Weights under which attention has something to choose: of fresh ones all scores are nearly alike.

A softmax of small scores is a straight line: attention over n positions is then nearly a product
of matrices as large as a head, which takes n times less, and answers right by the kind of its
weights alone. Trained attention tells few positions from all others. So what makes its scores is
given more weight, until some PICKED of all positions have most of the weight.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from pike_hpc.evaluate.judge_operations import Operations, bare
from pike_hpc.evaluate.judge_scores import FUSED, MASKED, SOFTMAX, without_fast_path
from pike_hpc.evaluate.runner import STATE_BYTES, State

PICKED = 16.0
"""Positions that share most of the weight where scores are normal numbers: of n such, exp of them
is as heavy as n / exp(variance) of one size."""

PICKED_PART = 1 / 4
"""Of few positions, as of a window, so many at most."""

LEAST = 4
"""Positions from which on it is asked. Over fewer than 24 a straight line gains nothing, however
narrow the heads are; a plain mean does, since it needs neither query, key nor scores. Where other
attention of the model chooses, no mutant tells of it: all scores alike are then far off."""

FEW, MOST_USES = 24, 4
"""Over fewer positions a weight stays that makes the scores of more softmaxes: what is applied
again and again to a few slots makes much of rounding once it chooses."""

MOST_GAIN = 8.0
"""Of one weight; a score is as large as two of them."""

ROUNDS = 4
"""In which weights are made larger: where keys were kept from a prompt queries alone make scores
larger, by the root of what is wanted. Of what should be eight times as large a seventh is missing
after four."""

NEAR = 1.05
"""A gain that is worth no further round."""

ROWS = 256
"""Rows of scores that are looked at."""

EACH = 16
"""Of a batch, of heads and of queries: few enough that no matrix of all scores is made for it."""

_PRODUCTS = re.compile(r"aten::(mm|bmm|addmm|baddbmm|matmul|linear|(_?convolution|conv\dd).*)$")
_BENDS = re.compile(r"norm|elu|silu|tanh|sigmoid|swish|softplus|mish|sqrt|aten::exp_?$")
"""Beyond these an answer is no longer as large as the weights before it."""


@dataclass(slots=True)
class Scores:
    """Those of one softmax."""

    made_of: frozenset[int]
    """The weights nearest to them: twice as large, they make scores four times as large."""
    spread: float
    positions: float
    chooses: bool = False
    """Whether what it weighs is added up, as attention does."""

    @property
    def gain(self) -> float:
        """What each of its weights is to be multiplied with."""
        if self.positions < LEAST or not 0.0 < self.spread < math.inf:
            return 1.0
        picked = min(PICKED, PICKED_PART * self.positions)
        wanted = math.sqrt(math.log(self.positions / picked))
        return min(MOST_GAIN, max(1.0, math.sqrt(wanted / self.spread)))


class _Origins(Operations):  # type: ignore[no-untyped-call]
    """Tells of which weights scores are made, and whether they are attention's."""

    def __init__(self, weights: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.found: list[Scores] = []
        self._made_of: MutableMapping[torch.Tensor, frozenset[int]] = WeakTensorKeyDictionary()
        self._weighs: MutableMapping[torch.Tensor, Scores] = WeakTensorKeyDictionary()
        self._plain: MutableMapping[torch.Tensor, bool] = WeakTensorKeyDictionary()
        """Weights, and what is nothing but weights: views, other types."""
        for weight in weights:
            self._made_of[weight] = frozenset({id(weight)})
            self._plain[weight] = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = bare(func.name())
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        plain = [t for t in given if t in self._plain]
        weighs = [w for t in given if (w := self._weighs.get(t)) is not None]
        made = func(*args, **kwargs)
        # Of a layer its own weights count, and of a norm its gain: what comes before them does not.
        nearest = _BENDS.search(name) or (plain and _PRODUCTS.match(name))
        made_of = self._of(*(plain if nearest else given))
        if name in SOFTMAX:
            weighs = [self._note(made_of, args[0].movedim(args[1], -1))]
            made_of = frozenset()
        elif any(part in name for part in FUSED):
            q, k = args[:2]
            given_scale = args[5] if "flex" in name else kwargs.get("scale")
            scale = given_scale or q.shape[-1] ** -0.5
            if q.dim() > 2 and q.shape[-3] != k.shape[-3]:  # heads that share their keys
                k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
            if q.shape[:-2] == k.shape[:-2]:
                few, keys = _spread_over(q, q.dim() - 1), _spread_over(k, k.dim() - 2)
                self._note(self._of(*args[:2]), few @ keys.mT * scale).chooses = True
            weighs, made_of = [], frozenset()
        elif _PRODUCTS.match(name):
            for scores in weighs:
                scores.chooses = True
            weighs = []
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                self._made_of[leaf] = made_of
                if weighs:
                    self._weighs[leaf] = weighs[0]
                if given and len(plain) == len(given):
                    self._plain[leaf] = True
        return made

    def _of(self, *tensors: torch.Tensor) -> frozenset[int]:
        return frozenset().union(*(self._made_of.get(t, frozenset()) for t in tensors))

    def _note(self, made_of: frozenset[int], scores: torch.Tensor) -> Scores:
        rows = _spread_over(scores, scores.dim() - 1).reshape(-1, scores.shape[-1])
        rows = rows[:: max(1, rows.shape[0] // ROWS)].float()
        seen = rows > rows.amax(-1, keepdim=True) - MASKED
        count = seen.sum(-1, keepdim=True)
        mean = torch.where(seen, rows, 0.0).sum(-1, keepdim=True) / count
        off = torch.where(seen, rows - mean, 0.0).square().sum()
        self.found.append(
            Scores(
                made_of=made_of,
                spread=float((off / count.sum()).sqrt()),
                positions=float(count.float().mean()),
            )
        )
        return self.found[-1]


def _spread_over(tensor: torch.Tensor, axes: int) -> torch.Tensor:
    """A few places, evenly spread, along each of the first `axes` axes."""
    steps = (slice(None, None, math.ceil(side / EACH)) for side in tensor.shape[:axes])
    return tensor[tuple(steps)]


def sharpen_scores(model: nn.Module, call: Callable[[], Any]) -> int:
    """Multiply what makes the scores of attention, where these are nearly alike.

    Args:
        model: in eval mode.
        call: calls it.

    Returns:
        How many weights were made larger; 0 where the model would not stand it, or can't be
        followed.
    """
    weights = {id(p): p for p in model.parameters()}
    gained: dict[int, float] = {}
    gains: dict[int, float] = {}
    before: list[Scores] = []
    for number in range(ROUNDS):
        # What a call leaves in the model is no part of its weights, nor in anybody's runner.
        with as_it_was(model):
            found = _scores_of(model, call)
        gains = _further(before, found, gains) if number else _gains(found)
        gains = {w: min(g, MOST_GAIN / gained.get(w, 1.0)) for w, g in gains.items()}
        changed = [(weights[w], gain) for w, gain in gains.items() if gain > 1.0]
        if not changed or not _stands(model, call, changed):
            break
        for weight, gain in changed:
            gained[id(weight)] = gain * gained.get(id(weight), 1.0)
        before = found
    return len(gained)


def _further(
    before: Sequence[Scores], now: Sequence[Scores], gains: Mapping[int, float]
) -> dict[int, float]:
    """What is still missing of weights that were made larger.

    Not of those whose scores did not follow, as normalised ones do not, nor beyond what any of
    the scores that a weight makes is still to be multiplied with.
    """
    if len(before) != len(now):
        return {}
    missing: dict[int, float] = {}
    for old, new in zip(before, now, strict=True):
        for weight in old.made_of & new.made_of & gains.keys() if new.chooses else ():
            follows = new.spread > (1.0 + gains[weight]) / 2 * old.spread
            gain = new.gain if follows and new.gain > NEAR else 1.0
            missing[weight] = min(gain, missing.get(weight, math.inf))
    return missing


def _stands(
    model: nn.Module, call: Callable[[], Any], gains: Sequence[tuple[nn.Parameter, float]]
) -> bool:
    """Whether answers stay finite with these weights made larger; if not, they are as before."""
    # On the host: a GPU may hold a large model twice, and never three times.
    kept = [weight.detach().to("cpu", copy=True) for weight, _ in gains]
    stands = False
    with torch.no_grad():
        for weight, gain in gains:
            weight.mul_(gain)
        try:
            with as_it_was(model):
                stands = _finite(call())
        except torch.OutOfMemoryError:
            raise
        except Exception:  # a forward that looks at its own numbers
            stands = False
        finally:
            for (weight, _), before in zip(gains, kept, strict=True) if not stands else ():
                weight.copy_(before)
    return stands


@contextlib.contextmanager
def as_it_was(model: nn.Module) -> Iterator[None]:
    """What calls inside leave in the model is gone afterwards, unless it is very much."""
    state = State(model) if State.size_bytes(model) <= STATE_BYTES else None
    try:
        yield
    finally:
        if state is not None:
            state.restore()


def gains_of(model: nn.Module, call: Callable[[], Any]) -> dict[int, float]:
    """By the id of a parameter, how many times as large it must be for attention to choose."""
    return _gains(_scores_of(model, call))


def _scores_of(model: nn.Module, call: Callable[[], Any]) -> list[Scores]:
    """Those of each softmax of a call, in their order."""
    weights = [p for p in model.parameters() if p.is_floating_point()]
    try:
        with torch.no_grad(), without_fast_path(), _Origins(weights) as origins:
            call()
    except torch.OutOfMemoryError:
        raise
    except Exception:  # what a forward does that knows no such mode: its scores stay
        return []
    return origins.found


def _gains(found: Iterable[Scores]) -> dict[int, float]:
    gains: dict[int, float] = {}
    choosing = [scores for scores in found if scores.chooses]
    uses = Counter(weight for scores in choosing for weight in scores.made_of)
    for scores in choosing:
        for weight in scores.made_of if scores.gain > 1.0 else ():
            if scores.positions >= FEW or uses[weight] <= MOST_USES:
                gains[weight] = max(scores.gain, gains.get(weight, 1.0))
    return gains


def _finite(answer: Any) -> bool:
    leaves = (t for t in tree_leaves(answer) if isinstance(t, torch.Tensor))
    return all(bool(t.isfinite().all()) for t in leaves)

"""How a program takes weights: in their places, by its own `prepare`, or by its own loader.

Whatever is called here is the program's. What it takes wrongly an exam shows.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .places import Placement, is_lazy, is_plain, shaped
from .protocol import Code, Refused, phase
from .state import writable

_STATE = re.compile(r"state|dict|weight|param|checkpoint|ckpt|^sd$|^sd_|_sd$")
_OPTION = re.compile(r"type|device|format|layout|path|file|name|decay|scale|only|use_|opt|conf|cfg")
"""Names of an argument that is the reference's state, and of one that is not."""


class Fitting:
    """One model, and how it takes weights: once, or again and again."""

    def __init__(
        self,
        model: nn.Module,
        placement: Placement | None,
        names: Sequence[str],
        device: torch.device,
    ) -> None:
        """Nothing is loaded yet.

        Args:
            model: on its device.
            placement: where the weights go; None where that is not known.
            names: the reference's, one for each weight.
            device: of what a program's own methods are given.
        """
        self._model, self._placement = model, placement
        self._names, self._device = names, device
        self._own = False
        """Whether the program's own method took the weights, wherever it put them."""
        self.guessed = False
        """Whether they are where likeness says, or some loader: a wrong answer may come of it."""

    @property
    def lasts(self) -> bool:
        """Whether it may take other weights as well."""
        return self._own or self._placement is None or self._placement.lasting

    def fit(self, weights: Sequence[torch.Tensor]) -> None:
        """Put the weights where they go. Raises Refused.

        They go from the shared bytes to their places one by one, never to the device twice.
        """
        prepare = prepare_of(self._model)
        by_name = self._placement is not None and self._placement.by_name
        self._own = self.guessed = False
        if by_name:
            self._write(weights, strict=prepare is None)
        elif prepare is not None and not says_state(prepare):
            with contextlib.suppress(Refused):  # a helper finds the weights as forward does
                self._write(weights, strict=False)
        self._own = prepare is not None and self._prepared(prepare, weights)
        if self._own or by_name:
            return
        self._own = loads_itself(self._model) and self._loaded(weights)
        self.guessed = True
        if not self._own:
            self._write(weights, strict=True)

    def _write(self, weights: Sequence[torch.Tensor], *, strict: bool) -> None:
        """Load weights where they have places.

        Raises Refused where there are none, or where the model doesn't take them, if `strict`:
        else `prepare` may still.
        """
        if self._placement is None:
            raise Refused(Code.NEED_SEED)
        own = loads_itself(self._model)
        if own:  # its loader may leave alone what it doesn't know
            self._copied(weights)
        # Some layers want everything that is theirs, and its version.
        state = nn.Module.state_dict(self._model)
        tensors = list(state.values())
        for name, index in self._placement.slots.items():
            state[name] = shaped(weights[index], state.get(name))
        try:
            with writable(tensors):
                load(self._model, state, strict=self._placement.by_name)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if not own and not isinstance(error, RuntimeError):
                raise
            if not (own and self._copied(weights)) and strict:
                raise Refused(Code.NEED_SEED) from None

    def _copied(self, weights: Sequence[torch.Tensor]) -> bool:
        """Copy weights past the program's own loader; False where a place is gone, or to come."""
        assert self._placement is not None
        state = nn.Module.state_dict(self._model)
        places = self._placement.slots
        if not all(_may_hold(state.get(name), weights[index]) for name, index in places.items()):
            return False
        with writable(state[name] for name in places):
            for name, index in places.items():
                state[name].copy_(shaped(weights[index], state[name]))
        return True

    def _given(self, weights: Sequence[torch.Tensor]) -> Looked:
        named = zip(self._names, weights, strict=True)
        return Looked({name: w.to(self._device, copy=True) for name, w in named})

    def _prepared(
        self, prepare: Callable[[dict[str, Any]], None], weights: Sequence[torch.Tensor]
    ) -> bool:
        """Whether `prepare` took them; it may be a helper of another kind. Raises Refused."""
        state, certain = self._given(weights), says_state(prepare)
        try:
            with phase(Code.PREPARE_RAISED), writable(nn.Module.state_dict(self._model).values()):
                prepare(state)
        except Refused as refused:
            if refused.code is not Code.PREPARE_RAISED or (certain and self._placement is None):
                raise
            return False
        return state.looked or (certain and self._placement is None)

    def _loaded(self, weights: Sequence[torch.Tensor]) -> bool:
        """Whether its own loader takes the reference's names and leaves no parameter out.

        Parameters hold NaN meanwhile; where it doesn't, everything is as it was.
        """
        state = nn.Module.state_dict(self._model, keep_vars=True)
        tensors = {n: t for n, t in state.items() if is_plain(t) and not is_lazy(t)}
        learned = [n for n, t in tensors.items() if isinstance(t, nn.Parameter)]
        # On the host: a GPU may hold a large model twice, and never three times.
        kept = {n: t.detach().to("cpu", copy=True) for n, t in tensors.items()}
        with writable(tensors.values()):
            try:
                for name in learned:
                    if tensors[name].is_floating_point():
                        tensors[name].fill_(torch.nan)
                load(self._model, self._given(weights), strict=True)
                took = wrote(nn.Module.state_dict(self._model), learned, kept)
            except Exception:
                traceback.print_exc()
                took = False
            if not took:
                for name, tensor in tensors.items():
                    if tensor.shape == kept[name].shape:
                        tensor.copy_(kept[name])
                    else:  # it was given other memory
                        tensor.data = kept[name].to(tensor.device)
        return took


class Looked(dict[str, Any]):
    """A state_dict that knows whether anybody looked into it."""

    looked = False

    def __getitem__(self, name: str) -> Any:
        self.looked = True
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        self.looked = True
        return super().__iter__()

    def keys(self) -> Any:
        """Its names."""
        self.looked = True
        return super().keys()

    def values(self) -> Any:
        """Its tensors."""
        self.looked = True
        return super().values()

    def items(self) -> Any:
        """Both."""
        self.looked = True
        return super().items()

    def get(self, name: str, default: Any = None) -> Any:
        """One tensor, if there is such a name."""
        self.looked = True
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        """The same, taken out."""
        self.looked = True
        return super().pop(name, *default)

    def popitem(self) -> tuple[str, Any]:
        """One of them, taken out."""
        self.looked = True
        return super().popitem()

    def setdefault(self, name: str, default: Any = None) -> Any:
        """One tensor, put in where there is none."""
        self.looked = True
        return super().setdefault(name, default)

    def copy(self) -> dict[str, Any]:
        """A plain one."""
        self.looked = True
        return dict(super().items())


def wrote(now: Mapping[str, Any], learned: Sequence[str], kept: Mapping[str, Any]) -> bool:
    """Whether a loader wrote each parameter; of a model without any, at least a buffer."""
    if learned:
        return not any(bool(now[n].isnan().any()) for n in learned if n in now)
    return any(not torch.equal(now[n].cpu(), before) for n, before in kept.items() if n in now)


def load(model: nn.Module, state: dict[str, Any], *, strict: bool) -> None:
    """Its own `load_state_dict`, which may take nothing but a state."""
    try:
        inspect.signature(model.load_state_dict).bind(state, strict=strict)
    except TypeError:
        model.load_state_dict(state)
    else:
        model.load_state_dict(state, strict=strict)


def loads_itself(model: nn.Module) -> bool:
    """Whether loading is the program's own code, which may know the reference's names."""
    steps: list[Any] = [model.load_state_dict]
    for module in model.modules():
        steps.append(module._load_from_state_dict)
        hooks = getattr(module, "_load_state_dict_pre_hooks", None) or {}
        steps += [_unwrapped(hook) for hook in hooks.values()]
    return not all(str(getattr(s, "__module__", "torch.")).startswith("torch.") for s in steps)


def _may_hold(place: Any, weight: torch.Tensor) -> bool:
    return torch.is_tensor(place) and not is_lazy(place) and place.numel() == weight.numel()


def _unwrapped(hook: Any) -> Any:
    """What a hook calls in the end: torch's own are wrapped, and so may a program's be."""
    hook = getattr(hook, "hook", hook)
    while isinstance(hook, functools.partial):
        hook = hook.func
    return hook


def prepare_of(model: Any) -> Callable[[dict[str, Any]], None] | None:
    """Its method that takes the reference's state_dict.

    One that needs no argument is its own, whatever options it has; unless the option is a state.
    """
    prepare: Callable[[dict[str, Any]], None] | None = getattr(model, "prepare", None)
    if not callable(prepare):
        return None
    try:
        inspect.signature(prepare).bind({})
    except TypeError:
        return None
    except ValueError:  # no signature to be had
        return prepare
    first = _first_of(prepare)
    own = first is not None and first.default is not first.empty and not says_state(prepare)
    return None if own else prepare


def says_state(prepare: Callable[..., Any]) -> bool:
    """Whether the name or the type of its argument says that it is a state_dict."""
    first = _first_of(prepare)
    if first is None:
        return False
    name, kind = first.name.lower(), first.annotation
    said = "" if kind is first.empty else str(kind)
    if _OPTION.search(name) or not (first.default is first.empty or first.default is None):
        return False
    return bool(_STATE.search(name)) or bool(re.search("(?i)dict|mapping", said))


def _first_of(prepare: Callable[..., Any]) -> inspect.Parameter | None:
    try:
        return next(iter(inspect.signature(prepare).parameters.values()), None)
    except (TypeError, ValueError):
        return None

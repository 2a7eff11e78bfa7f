"""A task's trusted source made runnable: the model class, models and inputs. Needs torch.

Runs the source as a module of its own name, with its text in `linecache`, so that tracebacks,
`inspect` and compilers see it. Leaves torch's global state (default dtype and device, gradients,
random streams, Python's and numpy's included) as it was. Decides nothing about admission: that is
the judge's.
"""

from __future__ import annotations

import contextlib
import linecache
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from pike_hpc.records import PikeError, Task, UsageError
from pike_hpc.tasks.source import effective_source

LEGACY_INPUT_SEED = 0
"""PIKE draws get_inputs() and then get_init_inputs() from one stream with this seed ..."""

LEGACY_WEIGHT_SEED = 1
"""... and the weights, in the constructor, from one with this seed."""


T = TypeVar("T")

Device = torch.device | str
"""Where tensors are made: cpu, cuda, or meta for shapes alone."""


class TaskRefused(PikeError):
    """A task file that cannot be used here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTask:
    """A task in memory."""

    task: Task
    model_class: type[nn.Module]
    namespace: Mapping[str, Any]
    """What the source defines."""

    def inputs(self, seed: int = LEGACY_INPUT_SEED, device: Device = "cpu") -> list[Any]:
        """The arguments of forward, drawn on `device` after `torch.manual_seed(seed)`.

        Raises:
            TaskRefused: get_inputs raises or returns no list.
        """
        return self.draws([seed], lambda arguments: arguments, device)[0]

    def draws(
        self, seeds: Sequence[int], each: Callable[[list[Any]], T], device: Device = "cpu"
    ) -> list[T]:
        """What `each` makes of the inputs of each seed: those that `inputs` gives.

        Raises:
            TaskRefused: get_inputs raises or returns no list.
        """
        found = []
        with _seeded(seeds[0], device):
            for seed in seeds:
                _seed(seed)
                found.append(each(self._call("get_inputs")))
        return found

    def init_inputs(self, device: Device = "cpu") -> list[Any]:
        """The constructor's arguments: the same at every call on one kind of device.

        Drawn after get_inputs() from one stream with seed 0, PIKE's order, wherever the source
        draws them at random; without randomness in it the inputs are not made.

        Raises:
            TaskRefused: get_init_inputs raises or returns no list.
        """
        if "get_init_inputs" not in self.namespace:
            return []
        with _seeded(LEGACY_INPUT_SEED, device):
            before = _streams(device)
            values = self._call("get_init_inputs")
            if all(torch.equal(a, b) for a, b in zip(before, _streams(device), strict=True)):
                return values
        with _seeded(LEGACY_INPUT_SEED, device):
            self._call("get_inputs")
            return self._call("get_init_inputs")

    def make_model(self, seed: int = LEGACY_WEIGHT_SEED, device: Device = "cpu") -> nn.Module:
        """A model in training mode, built on `device` after `torch.manual_seed(seed)`.

        Raises:
            TaskRefused: the constructor raises, or the call that a lazy model learns its shapes by.
        """
        arguments = self.init_inputs(device)
        with _seeded(seed, device), _refusing(self.task, "Model(*get_init_inputs())"):
            model = self.model_class(*arguments)
        if any(map(nn.parameter.is_lazy, (*model.parameters(), *model.buffers()))):
            inputs = self.inputs(LEGACY_INPUT_SEED, device)
            with _seeded(seed, device), _refusing(self.task, "the first call of a lazy Model"):
                model = self.model_class(*arguments)
                _call_once(model, inputs)
        return model

    def state_dict(self) -> dict[str, torch.Tensor] | None:
        """The weights that the task names, from its `get_state_dict()`; None where it has none.

        Trusted code that reads the user's checkpoint: for the judge alone, never in a sandbox.

        Raises:
            TaskRefused: it raises, gives no mapping of names to tensors, or one that does not
                fit the model.
        """
        if "get_state_dict" not in self.namespace:
            return None
        with _seeded(LEGACY_WEIGHT_SEED), _refusing(self.task, "get_state_dict()"):
            given = self.namespace["get_state_dict"]()
        if given is None:
            return None
        where, valid = f"{self.task.key}: get_state_dict()", "a mapping of names to tensors"
        if not isinstance(given, Mapping):
            raise TaskRefused(
                f"get_state_dict() returns a {type(given).__name__}", where=where, valid=valid
            )
        for name, value in given.items():
            if not isinstance(name, str) or not isinstance(value, torch.Tensor):
                raise TaskRefused(
                    f"get_state_dict() has a {type(value).__name__} under {name!r}",
                    where=where,
                    valid=valid,
                    fix="return the part of the checkpoint that holds the weights",
                )
        if (misfit := _misfit(self._own_state(), given)) is not None:
            raise TaskRefused(
                f"get_state_dict() does not fit Model(*get_init_inputs()): {misfit}",
                where=where,
                valid="the names and shapes of the model's own state_dict()",
            )
        return {name: value.detach() for name, value in given.items()}

    def _own_state(self) -> Mapping[str, torch.Tensor]:
        """Names and shapes; on no device where the constructor allows it."""
        try:
            return self.make_model(device="meta").state_dict()
        except TaskRefused:
            return self.make_model().state_dict()

    def _call(self, name: str) -> list[Any]:
        function: Callable[[], Any] = self.namespace[name]
        with _refusing(self.task, f"{name}()"):
            values = function()
        if not isinstance(values, list | tuple):
            raise TaskRefused(
                f"{name}() returns a {type(values).__name__}",
                where=self.task.key,
                valid="a list",
                fix="return a list of positional arguments",
            )
        return list(values)


def build(task: Task) -> LoadedTask:
    """Run the task's source, shape overrides applied.

    Raises:
        TaskRefused: it does not run here, or defines no usable Model and get_inputs.
    """
    try:
        source = effective_source(task)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler, about odd escapes in docstrings
            code = compile(source, _file_name(task), "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise TaskRefused(f"the task's source is no Python: {error}", where=task.key) from error
    except UsageError as error:
        raise TaskRefused(error.what, where=task.key, valid=error.valid) from error
    module = _module(task, source)
    with _seeded(LEGACY_INPUT_SEED), _refusing(task, "importing the task"):
        exec(code, module.__dict__)  # noqa: S102  task files are trusted code
    model_class = module.__dict__.get("Model")
    if not (isinstance(model_class, type) and issubclass(model_class, nn.Module)):
        raise TaskRefused("the task defines no torch.nn.Module called Model", where=task.key)
    if not callable(module.__dict__.get("get_inputs")):
        raise TaskRefused("the task defines no function get_inputs", where=task.key)
    return LoadedTask(task=task, model_class=model_class, namespace=module.__dict__)


def _call_once(model: nn.Module, inputs: Sequence[Any]) -> None:
    """Have lazy modules learn their shapes, and no statistics."""
    trains = {module: module.training for module in model.modules()}
    with torch.no_grad():
        model.eval()(*inputs)
    for module, training in trains.items():
        module.training = training


def _file_name(task: Task) -> str:
    """A name no file has; the digest keeps variants of one task apart in linecache."""
    return f"pike-task-{task.digest[:12]}/{task.id}_{task.name}.py"


def _module(task: Task, source: str) -> types.ModuleType:
    """An empty module in `sys.modules`, where dataclasses, pickle and inspect look for it."""
    module = types.ModuleType(f"pike_task_{task.digest[:12]}")
    module.__file__ = _file_name(task)
    linecache.cache[module.__file__] = (
        len(source),
        None,
        source.splitlines(keepends=True),
        module.__file__,
    )
    sys.modules[module.__name__] = module
    return module


@contextlib.contextmanager
def _refusing(task: Task, doing: str) -> Iterator[None]:
    """Turn whatever the task's code raises into one named refusal."""
    try:
        yield
    except TaskRefused:
        raise
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        raise TaskRefused(
            f"{doing} needs a module that is not here: {error}",
            where=task.key,
            fix=f"install {package} into {sys.prefix}, not editable" if package else None,
        ) from error
    except (Exception, SystemExit) as error:
        raise TaskRefused(
            f"{doing} raised {type(error).__name__}: {error}", where=task.key
        ) from error


def _misfit(own: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> str | None:
    """How the given weights differ from the model's own in names and shapes, None if not."""
    said = []
    for what, names in (
        ("missing", [name for name in own if name not in given]),
        ("unexpected", [name for name in given if name not in own]),
    ):
        if names:
            said.append(f"{what} {_first(names)}")
    shapes = [
        f"{name} is {tuple(given[name].shape)}, not {tuple(tensor.shape)}"
        for name, tensor in own.items()
        if name in given and tensor.shape != given[name].shape
    ]
    if shapes:
        said.append(_first(shapes))
    return "; ".join(said) or None


def _first(items: list[str], count: int = 3) -> str:
    more = f" and {len(items) - count} more" if len(items) > count else ""
    return ", ".join(items[:count]) + more


def _streams(device: Device) -> list[torch.Tensor]:
    """Where the random streams stand that factories on `device` may draw from."""
    states = [torch.random.get_rng_state()]
    if torch.device(device).type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def _seed(seed: int) -> None:
    """Seed every stream: torch's on CPU and GPUs, Python's, NumPy's.

    As `torch.manual_seed` does it, but for the stack trace that it formats.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for generator in torch.cuda.default_generators:
            generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


@contextlib.contextmanager
def _seeded(seed: int, device: Device = "cpu") -> Iterator[None]:
    """Inside, tensors are made on `device` and every stream is seeded; after, all is put back.

    The device is set as the default one rather than by `with torch.device`, which a task that
    calls `torch.set_default_device` itself would leave in disorder. The CPU is not set at all:
    whatever surrounds the call, such as `with torch.device("meta")`, goes on.
    """
    place = torch.device(device)
    devices: list[int] = []
    if place.type == "cuda" or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        devices = list(range(torch.cuda.device_count()))
    dtype, default = torch.get_default_dtype(), torch.get_default_device()
    gradients = torch.is_grad_enabled()
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=devices):
        _seed(seed)
        try:
            if place.type != "cpu":
                torch.set_default_device(place)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
            torch.set_grad_enabled(gradients)
            torch.set_default_dtype(dtype)
            if torch.get_default_device() != default:
                # None rather than the CPU: a default that is set costs every call of torch.
                torch.set_default_device(None if default.type == "cpu" else default)

"""A task's trusted source made runnable: the model class, models and inputs. Needs torch.

Runs the source as a module of its own name, with its text in `linecache`, so that tracebacks,
`inspect` and compilers see it. Leaves torch's global state (default dtype and device, random
streams) as it was. Decides nothing about admission: that is the judge's.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pike_hpc.records import PikeError, Task, UsageError
from pike_hpc.tasks.source import effective_source

LEGACY_INPUT_SEED = 0
"""PIKE draws get_inputs() and then get_init_inputs() from one stream with this seed ..."""

LEGACY_WEIGHT_SEED = 1
"""... and the weights, in the constructor, from one with this seed."""


class TaskRefused(PikeError):
    """A task file that cannot be used here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTask:
    """A task in memory."""

    task: Task
    model_class: type[nn.Module]
    namespace: Mapping[str, Any]
    """What the source defines."""

    def inputs(self, seed: int = LEGACY_INPUT_SEED) -> list[Any]:
        """The arguments of forward, on the CPU, drawn after `torch.manual_seed(seed)`.

        Raises:
            TaskRefused: get_inputs raises or returns no list.
        """
        with _seeded(seed):
            return self._call("get_inputs")

    def init_inputs(self) -> list[Any]:
        """The constructor's arguments: the same at every call.

        Drawn after get_inputs() from one stream with seed 0, PIKE's order, wherever the source
        draws them at random; without randomness in it the inputs are not made.

        Raises:
            TaskRefused: get_init_inputs raises or returns no list.
        """
        if "get_init_inputs" not in self.namespace:
            return []
        with _seeded(LEGACY_INPUT_SEED):
            before = torch.random.get_rng_state()
            values = self._call("get_init_inputs")
            if torch.equal(before, torch.random.get_rng_state()):
                return values
        with _seeded(LEGACY_INPUT_SEED):
            self._call("get_inputs")
            return self._call("get_init_inputs")

    def make_model(self, seed: int = LEGACY_WEIGHT_SEED) -> nn.Module:
        """A model in training mode on the CPU, built after `torch.manual_seed(seed)`.

        Raises:
            TaskRefused: the constructor raises.
        """
        arguments = self.init_inputs()
        with _seeded(seed), _refusing(self.task, "Model(*get_init_inputs())"):
            return self.model_class(*arguments)

    def _call(self, name: str) -> list[Any]:
        function: Callable[[], Any] = self.namespace[name]
        with _refusing(self.task, f"{name}()"):
            values = function()
        if not isinstance(values, list | tuple):
            raise TaskRefused(
                f"{name}() returns a {type(values).__name__}", where=self.task.key, valid="a list"
            )
        return list(values)


def build(task: Task) -> LoadedTask:
    """Run the task's source, shape overrides applied.

    Raises:
        TaskRefused: it does not run here, or defines no usable Model and get_inputs.
    """
    try:
        source = effective_source(task)
        code = compile(source, _file_name(task), "exec")
    except (SyntaxError, ValueError) as error:
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
    except ImportError as error:
        raise TaskRefused(
            f"{doing} needs a module that is not here: {error}",
            where=task.key,
            fix=f"pip install {error.name}" if error.name else None,
        ) from error
    except (Exception, SystemExit) as error:
        raise TaskRefused(
            f"{doing} raised {type(error).__name__}: {error}", where=task.key
        ) from error


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch inside, and put random streams, default dtype and device back after."""
    devices: list[int] = []
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        devices = list(range(torch.cuda.device_count()))
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            if torch.get_default_device() != device:
                torch.set_default_device(device)

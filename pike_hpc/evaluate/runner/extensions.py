"""Calls of torch.utils.cpp_extension that compile: told apart by digest, answered by libraries.

Contract: `call_key` names a call by all that its library depends on as far as the call says it;
two processes that import the same program get the same keys. `install` puts `answer` before
`load_inline` and `load`. Knows nothing of who built a library or where it was kept.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.machinery
import importlib.util
import inspect
import json
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

CALLS = ("load_inline", "load")
"""Functions of torch.utils.cpp_extension that compile."""

_PLACES = frozenset({"build_directory", "extra_include_paths", "verbose", "keep_intermediates"})
"""Arguments that say where and how loudly, not what: folders differ from process to process."""
_TEXTS = frozenset({"cpp_sources", "cuda_sources", "sycl_sources", "sources"})


def arguments_of(original: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """All arguments of a call by name, lists copied: torch's functions change theirs.

    Raises TypeError for a call that `original` would not take.
    """
    bound = inspect.signature(original).bind(*args, **kwargs)
    bound.apply_defaults()
    named = {k: list(v) if isinstance(v, list) else v for k, v in bound.arguments.items()}
    for name in _TEXTS & named.keys():
        named[name] = [named[name]] if isinstance(named[name], str) else list(named[name] or ())
    return named


def source_texts(call: str, arguments: Mapping[str, Any]) -> list[str]:
    """What is to be compiled. Raises OSError where a file of `load` can't be read."""
    if call == "load":
        files = (Path(path) for path in arguments["sources"])
        return [file.read_text("utf-8", "surrogateescape") for file in files]
    names = sorted(_TEXTS & arguments.keys())
    return [str(text) for name in names for text in arguments[name]]


def call_key(call: str, arguments: Mapping[str, Any]) -> str:
    """sha256 over sources, flags and name, in hexadecimal. Raises OSError, TypeError."""
    named = {k: v for k, v in arguments.items() if k not in _PLACES | {"sources"}}
    if call == "load":
        named["files"] = [Path(path).name for path in arguments["sources"]]
        named["texts"] = source_texts(call, arguments)
    text = json.dumps([call, named], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def install(
    answer: Callable[[str, Callable[..., Any], dict[str, Any]], Any],
) -> None:
    """Have `answer(call, original, arguments)` called for every call that compiles."""
    from torch.utils import cpp_extension  # noqa: PLC0415 - most programs never need it

    for call in CALLS:
        original = getattr(cpp_extension, call)

        def replaced(
            *args: Any,
            _call: str = call,
            _original: Callable[..., Any] = original,
            **kwargs: Any,
        ) -> Any:
            return answer(_call, _original, arguments_of(_original, args, kwargs))

        setattr(cpp_extension, call, functools.wraps(original)(replaced))


class Libraries:
    """Libraries that were built for this program before, each behind a descriptor."""

    def __init__(self, listed: list[dict[str, Any]], files: list[int]) -> None:
        """Take `listed` (key, name, is_module) in the order of `files`."""
        self._found = {
            each["key"]: (each["name"], each["is_module"], f"/proc/self/fd/{fd}")
            for each, fd in zip(listed, files, strict=True)
        }

    def answer(self, call: str, original: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """The library of that call, else what `original` makes of it."""
        try:
            found = self._found.get(call_key(call, arguments))
            if found is not None:
                return load_library(*found)
        except Exception:
            traceback.print_exc()  # a library that can't be used is built again
        return original(**arguments)


def load_library(name: str, is_module: bool, path: str) -> Any:
    """The module in a library, or its path once it is loaded. Raises ImportError, OSError."""
    if not is_module:
        ctypes.CDLL(path)
        return path
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module

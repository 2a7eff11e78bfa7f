"""A candidate's import where no GPU is: what it compiles on the way is sent to whoever listens.

Contract: connects to a Unix socket, reads a job, imports the task and the candidate as a runner
does, sends every library that `load_inline` or `load` made, and how it went. What is compiled
later, in constructors or calls, is left to the runner. After the import began this process belongs
to the candidate: the listener believes only that these bytes came from that candidate.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import diet
from .extensions import call_key, install, source_texts
from .program import load_file, same_defaults

LENGTH = struct.Struct(">I")
"""Bytes of the job that follow, as JSON."""
LIBRARY = struct.Struct(">c32s?HQ")
"""b"L", the call's key, whether it is a module, bytes of its name, bytes of the library."""
END = struct.Struct(">cB")
"""b"E", and how the import ended: IMPORTED, COMPILE_FAILED or RAISED."""

IMPORTED, COMPILE_FAILED, RAISED = range(3)

_NATIVE = re.compile(r"((?:-arch|--gpu-architecture)=)?native")
"""nvcc's flag for the GPU that is here, in one word or the two words of it."""
_DRIVER_LACKS = re.compile(r"find (?:library )?-l(?:cuda|nvidia-ml)\b")
"""What linkers say where the driver's libraries are missing, as on a machine without a GPU."""


class Workshop:
    """Compiles what a program asks for: with light headers where they do, and tells of it."""

    def __init__(self, link: socket.socket, arch: str | None = None) -> None:
        """`arch`: compute capability of the GPU that will run what is compiled, such as 9.0."""
        self._link, self._arch = link, arch
        self._failed: list[BaseException] = []
        self._folder = Path(tempfile.mkdtemp(prefix="headers-"))
        self._built = 0
        self._renamed = False
        """Whether the call at hand asked for a GPU that is not here, and was given another name."""

    def answer(self, call: str, original: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """What the call returns; its library is sent beside. Raises what the compiler said."""
        try:
            key, texts = call_key(call, arguments), source_texts(call, arguments)
        except (OSError, TypeError):
            return original(**arguments)  # it will say what is wrong with them
        if arguments.get("is_standalone"):
            return original(**arguments)
        named = for_arch(arguments, self._arch)
        self._renamed, arguments = named != arguments, named
        made = self._light(original, arguments, texts)
        if made is None:
            made = self._full(original, arguments)
        is_module = bool(arguments["is_python_module"])
        path = Path(made.__file__ if is_module else made)
        name = (made.__name__ if is_module else path.stem).encode()
        library = path.read_bytes()
        head = LIBRARY.pack(b"L", bytes.fromhex(key), is_module, len(name), len(library))
        self._link.sendall(head + name + library)
        return made

    def blames(self, error: BaseException | None) -> bool:
        """Whether a failed compilation is behind an exception."""
        while error is not None:
            if any(error is failed for failed in self._failed):
                return True
            error = error.__cause__ or error.__context__
        return False

    def _light(
        self, original: Callable[..., Any], arguments: dict[str, Any], texts: list[str]
    ) -> Any | None:
        """The same with light headers; None where they don't do."""
        made = diet.headers(texts, Path(torch.__file__).with_name("include"))
        if made is None:
            return None
        self._built += 1
        folder = self._folder / str(self._built)
        diet.write(folder, made)
        paths = [str(folder), *(arguments.get("extra_include_paths") or ())]
        try:
            quiet = {"extra_include_paths": paths, "verbose": False}
            return original(**(_copied(arguments) | quiet))
        except RuntimeError as error:
            if not _is_compilers(error):
                raise
            _forget(arguments["name"])
            return None

    def _full(self, original: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        try:
            return original(**_copied(arguments))
        except RuntimeError as error:
            # The lack of a GPU or of its driver is nobody's fault: the run decides.
            if _is_compilers(error) and not self._renamed and not _DRIVER_LACKS.search(str(error)):
                self._failed.append(error)
            raise


def for_arch(arguments: dict[str, Any], arch: str | None) -> dict[str, Any]:
    """The arguments with flags of nvcc that mean "the GPU here" naming that of the run instead.

    Here is none, and nvcc would compile for the oldest that it knows. The same without `arch`.
    """
    flags = arguments.get("extra_cuda_cflags")
    if arch is None or not isinstance(flags, (list, tuple)):
        return arguments
    named = f"sm_{arch.replace('.', '')}"
    made: list[Any] = []
    for before, flag in zip(("", *flags), flags, strict=False):
        found = _NATIVE.fullmatch(flag) if isinstance(flag, str) else None
        bound = found is not None and (found[1] or before in ("-arch", "--gpu-architecture"))
        made.append(f"{found[1] or ''}{named}" if found and bound else flag)
    return arguments | {"extra_cuda_cflags": made} if made != list(flags) else arguments


def _copied(arguments: dict[str, Any]) -> dict[str, Any]:
    """Lists are copied: load_inline puts headers into those that it is given."""
    return {k: list(v) if isinstance(v, list) else v for k, v in arguments.items()}


def _is_compilers(error: BaseException) -> bool:
    """Whether ninja ran and failed, as cpp_extension reports it."""
    return isinstance(error.__cause__, subprocess.CalledProcessError)


def _forget(name: str) -> None:
    """Have the next attempt take the same name; a change of flags would make it NAME_v1."""
    from torch.utils import cpp_extension  # noqa: PLC0415 - imported by now

    cpp_extension.JIT_EXTENSION_VERSIONER.entries.pop(name, None)


class PretendedGpu:
    """Answers the questions about a GPU that need none, and remembers when one was needed."""

    def __init__(self, arch: str | None) -> None:
        """Pretend a device of that compute capability, such as 9.0; None pretends nothing."""
        self.was_needed = False
        if arch is None:
            return
        major, minor = arch.split(".")
        init: Callable[[], None] = torch.cuda._lazy_init

        def asked() -> None:
            self.was_needed = True
            init()

        pretended: dict[str, Any] = {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "get_device_capability": lambda device=None: (int(major), int(minor)),
            "_lazy_init": asked,
        }
        for name, function in pretended.items():
            setattr(torch.cuda, name, function)


def main(address: str) -> None:
    """Do the job that the listener at `address` gives."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.connect(address)
        with link.makefile("rb") as file:
            (size,) = LENGTH.unpack(file.read(LENGTH.size))
            job = json.loads(file.read(size))
        workshop = Workshop(link, job["arch"])
        install(workshop.answer)
        gpu = PretendedGpu(job["arch"])
        place = Path(tempfile.mkdtemp(prefix="program-"))
        outcome = IMPORTED
        try:
            with same_defaults():
                load_file(place / "task.py", job["task"])
                load_file(place / "candidate.py", job["candidate"])
        except BaseException as error:
            traceback.print_exc()
            compiled = workshop.blames(error) and not gpu.was_needed
            outcome = COMPILE_FAILED if compiled else RAISED
        link.sendall(END.pack(b"E", outcome))

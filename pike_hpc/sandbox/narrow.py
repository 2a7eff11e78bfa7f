"""Starts a program with fewer system calls: `python -I -S narrow.py FILTER PROGRAM ARGUMENT...`.

Contract: FILTER is what `sandbox.filter` makes, in hexadecimal digits. Becomes the program, under
the filter and without a way to gain privileges; or, with `--hand-over` before FILTER, without
them: the filter then lies on descriptor 10 for a program that installs it itself. Standard
library only, imports nothing of the project. Exits with 125 where the filter cannot be installed
and 127 where there is no such program. It does not know what is filtered.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

HAND_OVER_FD = 10

_SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER, _SPEC_ALLOW = 1, 4
"""Without the second, kernels before 5.16 switch off speculation past stores: slower code."""


def main() -> int:
    """Become the program; a status only where that failed."""
    hand_over = sys.argv[1] == "--hand-over"
    filter_, *program = sys.argv[1 + hand_over :]
    try:
        if hand_over:
            read, write = os.pipe()
            os.write(write, bytes.fromhex(filter_))
            os.close(write)
            os.dup2(read, HAND_OVER_FD)
        else:
            _install(bytes.fromhex(filter_))
    except OSError as error:
        os.write(2, f"sandbox: no filter of system calls: {error}\n".encode())
        return 125
    try:
        os.execvp(program[0], program)  # noqa: S606 - no shell is meant
    except OSError as error:
        os.write(2, f"sandbox: {program[0]}: {error.strerror}\n".encode())
    return 127


def _install(code: bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HP", len(code) // 8, ctypes.addressof(buffer))
    call = (_SYS_SECCOMP[os.uname().machine], _SET_MODE_FILTER, _SPEC_ALLOW, program)
    if libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or libc.syscall(*call) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    sys.exit(main())

"""Which system calls are refused inside a sandbox: a seccomp filter, as bytes. Pure.

Contract: a deny-list, because what CUDA and compilers call differs from version to version.
Refused is what makes namespaces, what reaches into other processes, and what lets the kernel go
on working for a process that is stopped: the reference is timed while a candidate is. It knows
neither how the filter is installed (`narrow.py`, `enter.py`, bwrap) nor whether that sufficed:
`measure` finds out.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MAX_TIMERS = 256
"""RLIMIT_SIGPENDING: POSIX timers and queued signals of a user. A timer that expires costs the
kernel about 2 us whether its owner runs or not; a common default is 100,000 of them."""

_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET of linux/sched.h."""
_NEWTIME = 0x80
_CLONE_PARENT = 0x8000
_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of linux/prctl.h. By either a program chooses who buries its dead, and
hides that it forked while it was stopped."""
_SET_SECCOMP = 22
"""PR_SET_SECCOMP of linux/prctl.h. Filters need no privilege and are compiled by the kernel, which
frees them in the background: Linux 6.18 with some ten thousand of them to free hung for good, each
sandbox that was to start after that with it (2026-11-25)."""
_SOL_SOCKET = 1
_SOCKET_FILTERS = (26, 50, 51, 52)
"""SO_ATTACH_FILTER, ATTACH_BPF, ATTACH_REUSEPORT_CBPF, ATTACH_REUSEPORT_EBPF of asm/socket.h."""
_AF_UNIX = 1

_NOT_PERMITTED = (
    "setns",
    *("mount", "umount2", "pivot_root", "open_tree", "move_mount", "fsopen", "fsmount"),
    "mount_setattr",
    *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd"),
    # Descriptors sent to oneself: the kernel frees their memory in the background, seconds of work.
    *("sendmsg", "sendmmsg"),
    *("bpf", "seccomp", "perf_event_open", "userfaultfd", "add_key", "request_key", "keyctl"),
)
_NOT_KNOWN = (
    # Its flags lie in memory, where no filter sees them; glibc then calls clone.
    "clone3",
    # Queues that the kernel works off, and timers without number, while their owner is stopped.
    *("io_uring_setup", "io_uring_enter", "io_uring_register", "io_setup", "timerfd_create"),
)
"""Calls whose users go another way where the kernel is too old for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    audit: int
    """AUDIT_ARCH_* of linux/audit.h."""
    numbers: Mapping[str, int]
    first_foreign: int = 1 << 31
    """Where the numbers of another calling convention begin."""


_COMMON = {
    **{"open_tree": 428, "move_mount": 429, "fsopen": 430, "fsmount": 432, "mount_setattr": 442},
    **{"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427},
    **{"clone3": 435, "pidfd_getfd": 438},
}
"""Since 5.1 a new call has one number everywhere."""

# asm/unistd_64.h, asm-generic/unistd.h
MACHINES: Mapping[str, _Machine] = {
    "x86_64": _Machine(
        audit=0xC000003E,
        first_foreign=0x40000000,  # x32
        numbers=_COMMON
        | {"unshare": 272, "clone": 56, "socket": 41, "socketpair": 53, "prctl": 157}
        | {"seccomp": 317, "setsockopt": 54}
        | {"setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155}
        | {"ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311}
        | {"bpf": 321, "perf_event_open": 298, "userfaultfd": 323}
        | {"add_key": 248, "request_key": 249, "keyctl": 250}
        | {"io_setup": 206, "timerfd_create": 283, "sendmsg": 46, "sendmmsg": 307},
    ),
    "aarch64": _Machine(
        audit=0xC00000B7,
        numbers=_COMMON
        | {"unshare": 97, "clone": 220, "socket": 198, "socketpair": 199, "prctl": 167}
        | {"seccomp": 277, "setsockopt": 208}
        | {"setns": 268, "mount": 40, "umount2": 39, "pivot_root": 41}
        | {"ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271}
        | {"bpf": 280, "perf_event_open": 241, "userfaultfd": 282}
        | {"add_key": 217, "request_key": 218, "keyctl": 219}
        | {"io_setup": 0, "timerfd_create": 85, "sendmsg": 211, "sendmmsg": 269},
    ),
}

# linux/bpf_common.h, linux/seccomp.h
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_AT_NUMBER, _AT_ARCHITECTURE, _AT_FIRST_ARGUMENT, _ARGUMENT_BYTES = 0, 4, 16, 8
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def seccomp(machine: str) -> bytes:
    """An array of `struct sock_filter` for that `uname -m`; empty where we know no numbers."""
    known = MACHINES.get(machine)
    if known is None:
        return b""
    refused = dict.fromkeys(_NOT_PERMITTED, errno.EPERM) | dict.fromkeys(_NOT_KNOWN, errno.ENOSYS)
    steps = [
        _step(_LOAD, _AT_ARCHITECTURE),
        _step(_IF_EQUAL, known.audit, 1, 0),
        _refuse(errno.ENOSYS),
        _step(_LOAD, _AT_NUMBER),
        _step(_IF_AT_LEAST, known.first_foreign, 0, 1),
        _refuse(errno.ENOSYS),
    ]
    for name, number in sorted(refused.items()):
        steps += [_step(_IF_EQUAL, known.numbers[name], 0, 1), _refuse(number)]
    for name, flags in (
        ("clone", _NAMESPACES | _CLONE_PARENT),
        ("unshare", _NAMESPACES | _NEWTIME),
    ):
        steps += [
            _step(_IF_EQUAL, known.numbers[name], 0, 4),
            _step(_LOAD, _AT_FIRST_ARGUMENT),
            _step(_IF_ANY_BIT, flags, 0, 1),
            _refuse(errno.EPERM),
            _step(_RETURN, _ALLOW),
        ]
    for option in (_SUBREAPER, _SET_SECCOMP):
        steps += _refuse_where(known.numbers["prctl"], (option,))
    for option in _SOCKET_FILTERS:
        steps += _refuse_where(known.numbers["setsockopt"], (None, _SOL_SOCKET, option))
    for name in ("socket", "socketpair"):
        steps += [
            _step(_IF_EQUAL, known.numbers[name], 0, 4),
            _step(_LOAD, _AT_FIRST_ARGUMENT),
            _step(_IF_EQUAL, _AF_UNIX, 1, 0),
            _refuse(errno.EAFNOSUPPORT),
            _step(_RETURN, _ALLOW),
        ]
    return b"".join([*steps, _step(_RETURN, _ALLOW)])


def _step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    """One instruction: code, value, and how many to skip if the condition holds or not."""
    return struct.pack("<HBBI", code, then, otherwise, value)


def _refuse_where(number: int, arguments: Sequence[int | None]) -> list[bytes]:
    """EPERM for that call where its arguments, 32 bits each, are these; None is any."""
    looked_at = [(i, value) for i, value in enumerate(arguments) if value is not None]
    left = 2 * len(looked_at) + 1
    steps = [_step(_IF_EQUAL, number, 0, left)]
    for i, value in looked_at:
        left -= 2
        steps.append(_step(_LOAD, _AT_FIRST_ARGUMENT + i * _ARGUMENT_BYTES))
        steps.append(_step(_IF_EQUAL, value, 0, left))
    return [*steps, _refuse(errno.EPERM), _step(_LOAD, _AT_NUMBER)]


def _refuse(number: int) -> bytes:
    return _step(_RETURN, _ERRNO | number)

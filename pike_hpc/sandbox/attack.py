# ruff: noqa: PTH108, PTH109, PTH110, PTH123, PTH208 - runs inside with as little of Python as possible
"""The program that attacks from inside a sandbox: run as `python -I -S attack.py TARGETS`.

Contract: standard library only, imports nothing of the project. Tries what `sandbox.probe` has
laid out and nothing else, within bounds that hurt nobody (8 processes, 80 MB, one listener of
the prober's on this machine). Prints one JSON object: attack to true where it **succeeded**.
What can be seen from outside is not reported here. It does not know what the sandbox is.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

MEBIBYTE = 1 << 20
MOST_MB = 64
MOST_PROCESSES = 8
HOLD_S = 0.5
"""How long children stay, so that all of them exist at the same time."""
BEAT_S = 0.01
BEATS = 1000
"""How long it beats at most, where nobody takes the file away."""

_NEWNS, _NEWUSER, _NEWNET = 0x00020000, 0x10000000, 0x40000000
_REMOUNT_BIND = 0x20 | 0x1000

# asm/unistd_64.h, asm-generic/unistd.h
_SYS = {
    "x86_64": {"clone": 56, "io_setup": 206, "timer_create": 222, "timerfd_create": 283},
    "aarch64": {"clone": 220, "io_setup": 0, "timer_create": 107, "timerfd_create": 85},
}.get(os.uname().machine, {})
_SYS_IO_URING_SETUP, _SYS_CLONE3 = 425, 435

_libc = ctypes.CDLL(None, use_errno=True)

Targets = dict[str, Any]


def main() -> None:
    """Try everything; an attack that cannot even be tried has not succeeded."""
    targets = json.loads(sys.argv[1])
    attacks: dict[str, Callable[[Targets], bool]] = {
        "judge_memory": lambda t: _opens_memory(t["guarded_pid"]),
        "process_memory": lambda t: _opens_memory(t["plain_pid"]),
        "process_environment": lambda t: _find_in_proc(t, "environ"),
        "process_view": lambda t: _find_in_proc(t, "cmdline"),
        "signal": _signal,
        "read_secret": lambda t: _reads(t["secret"], t["nonce"]),
        "read_home": lambda t: any(name in t["home_names"] for name in os.listdir(t["home"])),
        "shared_memory": lambda t: _reads(t["shared_memory"], t["nonce"]),
        "write": _write_everywhere,
        "open_for_writing": lambda t: any(_opens(path) for path in t["files"]),
        "open_file": lambda t: _opens(t["open_file"]),
        "network": _connect_tcp,
        "abstract_socket": _connect_abstract,
        "network_interfaces": lambda _: any(name != "lo" for name in _interfaces()),
        "show_uid": lambda t: _create(t["shared"], t["nonce"]),
        "capabilities": lambda _: int(_own_status("CapEff"), 16) != 0,
        "gain_privileges": lambda _: _own_status("NoNewPrivs") != "1",
        "work_while_stopped": _find_helpers,
        "scratch": _fill_scratch,
        "processes": _fork,
        "memory_of_one": lambda t: t["memory_mb"] == 0 or _takes(t["memory_mb"] + 8),
        "memory_together": _take_together,
        "memory_in_files": _fill_memory_files,
        "remount": _remount,
        "namespaces": _make_namespaces,  # Last: in one of its own it would see less.
    }
    succeeded = {}
    for name, attack in attacks.items():
        try:
            succeeded[name] = attack(targets)
        except (OSError, MemoryError):
            succeeded[name] = False
    _beat(targets["beats"])
    sys.stdout.write(json.dumps(succeeded) + "\n")
    sys.stdout.flush()


def _opens_memory(pid: int) -> bool:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        if b"victim.py" not in file.read():
            return False  # Another process of that number, in a PID namespace of our own.
    with open(f"/proc/{pid}/mem", "rb+"):
        return True


def _find_in_proc(targets: Targets, name: str) -> bool:
    nonce = targets["nonce"].encode()
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or int(pid) == os.getpid():
            continue
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                text = file.read()
        except OSError:
            continue
        # Our own targets, and those of the wrappers around us, contain the nonce as well.
        if nonce in text and b"attack.py" not in text:
            return True
    return False


def _signal(targets: Targets) -> bool:
    pid = targets["signal_pid"]
    if pid not in (1, os.getpid(), os.getppid()):
        os.kill(pid, signal.SIGUSR1)
    return False


def _ways_to(path: str) -> Iterator[str]:
    """The path itself, and where it would be if a mount or a process led to the outside."""
    yield path
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        points = sorted({line.split()[4] for line in file})
    for pid in ("1", str(os.getppid())):
        points += [f"/proc/{pid}/root", f"/proc/{pid}/cwd"]
    yield from (f"{point}{path}" for point in points if point != "/")


def _reads(path: str, nonce: str) -> bool:
    for way in _ways_to(path):
        try:
            with open(way, encoding="utf-8") as file:
                if nonce in file.read():
                    return True
        except OSError:
            continue
    return False


def _opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _create(folder: str, name: str) -> bool:
    try:
        os.close(os.open(f"{folder}/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError:
        return False
    return True


def _write_everywhere(targets: Targets) -> bool:
    # The prober looks for the files; what is created on a file system of ours does not count.
    for folder in targets["folders"]:
        for way in _ways_to(folder):
            _create(way, targets["nonce"])
    return False


def _remount(targets: Targets) -> bool:
    """Become the owner of a user namespace and try to make a read-only bind writable."""
    if _libc.unshare(_NEWNS | _NEWUSER) != 0:
        return False
    for folder in targets["read_only"]:
        _libc.mount(None, folder.encode(), None, ctypes.c_ulong(_REMOUNT_BIND), None)
        _libc.umount2(folder.encode(), 2)
        _create(folder, targets["nonce"])
    return False


def _connect_tcp(targets: Targets) -> bool:
    with socket.create_connection(("127.0.0.1", targets["tcp_port"]), timeout=2):
        return False


def _connect_abstract(targets: Targets) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(2)
        client.connect("\0" + targets["abstract_name"])
    return False


def _interfaces() -> list[str]:
    with open("/proc/self/net/dev", encoding="ascii", errors="replace") as file:
        return [line.split(":")[0].strip() for line in file.readlines()[2:]]


def _make_namespaces(_: Targets) -> bool:
    """Whoever makes a user namespace has all capabilities in it, over a network of its own too."""
    if any(_libc.unshare(flags) == 0 for flags in (_NEWUSER, _NEWNET, _NEWNS)):
        return True
    flags = _NEWUSER | _NEWNET
    wanted = struct.pack("8Q", flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    calls: list[tuple[Any, ...]] = [(_SYS_CLONE3, wanted, len(wanted))]
    if "clone" in _SYS:
        calls.append(
            (_SYS["clone"], ctypes.c_ulong(flags | signal.SIGCHLD), None, None, None, None)
        )
    for call in calls:
        child = _libc.syscall(*call)
        if child == 0:
            os._exit(0)
        if child > 0:
            os.waitpid(child, 0)
            return True
    return False


def _find_helpers(targets: Targets) -> bool:
    """What the kernel does for a program without running it: SIGSTOP does not end that."""
    if not _SYS:
        return True  # Not tried.
    return (
        _libc.syscall(_SYS_IO_URING_SETUP, 1, ctypes.create_string_buffer(120)) >= 0
        or _libc.syscall(_SYS["io_setup"], 1, ctypes.byref(ctypes.c_ulong(0))) == 0
        or _libc.syscall(_SYS["timerfd_create"], 1, 0) >= 0
        or any(map(_opens_socket, (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)))
        or _sends_descriptors()
        or _attaches_filter()
        or all(_makes_timer() for _ in range(targets["timers"] + 1))
    )


def _opens_socket(family: int) -> bool:
    try:
        socket.socket(family, socket.SOCK_DGRAM).close()
    except OSError:
        return False
    return True


def _attaches_filter() -> bool:
    """Filters are freed by the kernel, in its own time; this one takes everything."""
    accept = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0xFFFFFFFF))
    one, other = socket.socketpair()
    with one, other:
        try:
            one.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HP", 1, ctypes.addressof(accept)))
        except OSError:
            return False
    return True


def _makes_timer() -> bool:
    """It is never set, and ends with us."""
    made = ctypes.byref(ctypes.c_int())
    return bool(_libc.syscall(_SYS["timer_create"], 1, None, made) == 0)


def _sends_descriptors() -> bool:
    """Sockets that hold each other are collected by the kernel, in its own time."""
    one, other = socket.socketpair()
    with one, other:
        try:
            socket.send_fds(one, [b"x"], [0])
        except OSError:
            return False
    return True


def _beat(path: str) -> None:
    """Write for as long as we run and the file is there: whoever stops us looks at it."""
    try:
        with open(path, "xb", buffering=0) as file:
            for _ in range(BEATS):
                file.write(b".")
                time.sleep(BEAT_S)
                if not os.path.exists(path):
                    return
    except OSError:
        return


def _own_status(key: str) -> str:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return next(line.split()[1] for line in file if line.startswith(f"{key}:"))


def _fill_scratch(targets: Targets) -> bool:
    """Write twice the limit, in files that each keep it, to every place that is ours."""
    limit_mb = targets["scratch_mb"]
    for folder in (os.getcwd(), "/tmp", "/dev/shm", "/var/tmp"):  # noqa: S108
        written, names = 0, []
        try:
            for number in range(min(2 * limit_mb, MOST_MB // 4)):
                names.append(f"{folder}/{targets['nonce']}-{number}")
                with open(names[-1], "wb", buffering=0) as file:
                    written += file.write(b"x" * MEBIBYTE)
        except OSError:
            pass
        for name in names:
            if os.path.lexists(name):
                os.unlink(name)
        if written > limit_mb * MEBIBYTE:
            return True
    return False


def _fork(_: Targets) -> bool:
    children = list(_children(MOST_PROCESSES, lambda: time.sleep(HOLD_S)))
    for child in children:
        os.waitpid(child, 0)
    return len(children) == MOST_PROCESSES


def _take_together(targets: Targets) -> bool:
    """Three processes within their own limit, beyond it together."""
    if targets["memory_mb"] == 0:
        return True

    def take() -> None:
        _offer_itself()
        _takes(targets["memory_mb"] * 5 // 8, HOLD_S)

    children = list(_children(3, take))
    ends = [os.waitpid(child, 0)[1] for child in children]
    return len(ends) < 3 or not any(ends)


def _offer_itself() -> None:
    """Where the kernel has to kill, let it take this child and not who is to report."""
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _children(count: int, work: Callable[[], object]) -> Iterator[int]:
    for _ in range(count):
        try:
            child = os.fork()
        except OSError:
            return
        if child == 0:
            status = 1
            try:
                work()
                status = 0
            finally:
                os._exit(status)
        yield child


def _takes(size_mb: int, hold_s: float = 0.0) -> bool:
    """Whether that much memory can be had; raises MemoryError."""
    block = bytearray(min(size_mb, MOST_MB) * MEBIBYTE)
    block[::4096] = b"x" * len(block[::4096])
    time.sleep(hold_s)
    return True


def _fill_memory_files(targets: Targets) -> bool:
    """Anonymous files are memory that no limit of a process counts."""
    if targets["memory_mb"] == 0:
        return True

    def fill() -> None:
        _offer_itself()
        for _ in range(2 * targets["memory_mb"]):
            os.write(os.memfd_create("attack"), b"x" * MEBIBYTE)

    ends = [os.waitpid(child, 0)[1] for child in _children(1, fill)]
    return not any(ends)


if __name__ == "__main__":
    main()

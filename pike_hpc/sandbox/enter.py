# ruff: noqa: PTH102, PTH103, PTH106, PTH116, PTH120, PTH123, PTH211 - pathlib slows every start
"""The unshare engine: a program that puts another into namespaces of its own.

Contract: run as `python -I -S enter.py PLAN`, where PLAN is the JSON that `sandbox.command`
writes; one thread, standard library only, imports nothing of the project. Works for root and
for ordinary users: mounts are made as the mapped owner of a new user namespace, who reaches
folders that only we may traverse; the program itself then runs as uid and gid 65534 (outside:
65534 where we are root, else our own) without a single capability, namespaces of its own or the
system calls of the plan's filter. Two processes of ours stay:
the outer one waits, the first one inside reaps; when either dies, the kernel ends the rest.
Exits with the program's status, 128+N for signal N, 125 where the sandbox could not be built.
It does not know what the program is for.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import select
import signal
import socket
import stat
import struct
import sys
from typing import Any, NoReturn

FAILED = 125
"""Exit status when the sandbox could not be built, as `env` and `docker` use it."""

# linux/sched.h
_NAMESPACES = (
    0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
)
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_SYS_CLONE = {"x86_64": 56, "aarch64": 220, "ppc64le": 120}
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "ppc64le": 203}
_SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}
# linux/mount.h
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = (
    *(0x1, 0x2, 0x4, 0x8, 0x20, 0x1000, 0x4000, 0x40000),
)
_NOATIME, _NODIRATIME, _RELATIME = 0x400, 0x800, 0x200000
_DETACH = 2
# linux/prctl.h
_SET_PDEATHSIG, _SET_DUMPABLE, _CAPBSET_DROP, _SET_NO_NEW_PRIVS = 1, 4, 24, 38
# linux/seccomp.h
_SET_MODE_FILTER, _SPEC_ALLOW = 1, 4

_COUNTED = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
"""Kinds of namespaces whose number is limited for each user namespace."""

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    """Enter the sandbox of argv[1]; the exit status of the program inside."""
    plan = json.loads(sys.argv[1])
    os.closerange(3, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") > 0 else 65536)
    alive_read, alive_write = os.pipe()
    go_read, go_write = os.pipe()
    try:
        child = _clone(_NAMESPACES | signal.SIGCHLD)
        if child == 0:
            os.close(alive_write)
            os.close(go_write)
            _first_inside(plan, go_read, alive_read)
        os.close(alive_read)
        os.close(go_read)
        _map_ids(child, plan)
        os.write(go_write, b"g")
    except OSError as error:
        return _refuse(error)
    return _status(os.waitpid(child, 0)[1])


def _first_inside(plan: dict[str, Any], go: int, alive: int) -> NoReturn:
    """Process 1 of the new PID namespace: build, drop, start the program, reap."""
    status = FAILED
    try:
        if os.read(go, 1) == b"g":
            _build_root(plan)
            _allow_no_namespaces()
            _drop_privileges(plan, alive)
            program = os.fork()
            if program == 0:
                _become(plan)
            status = _reap(program)
    except BaseException as error:
        _refuse(error)
    os._exit(status)


def _become(plan: dict[str, Any]) -> NoReturn:
    try:
        os.setsid()
        os.execvpe(plan["argv"][0], plan["argv"], plan["env"])  # noqa: S606 - no shell is meant
    except BaseException as error:
        _refuse(error)
    os._exit(127)


def _reap(program: int) -> int:
    while True:
        pid, status = os.wait()
        if pid == program:
            return _status(status)


def _map_ids(child: int, plan: dict[str, Any]) -> None:
    """Give the new user namespace its ids. Only a process outside may map two of them."""
    uid, gid, inner = plan["outer_uid"], plan["outer_gid"], plan["inner_id"]
    if uid == 0:
        # Root inside makes the mounts; the program becomes the real, unprivileged inner id.
        uid_map = gid_map = f"0 0 1\n{inner} {inner} 1\n"
    else:
        uid_map, gid_map = f"{inner} {uid} 1\n", f"{inner} {gid} 1\n"
        _write(f"/proc/{child}/setgroups", "deny")
    _write(f"/proc/{child}/uid_map", uid_map)
    _write(f"/proc/{child}/gid_map", gid_map)


def _build_root(plan: dict[str, Any]) -> None:
    """A new root on a tmpfs with what the plan shows, and nothing else."""
    sources = {path: os.path.realpath(path) for path, _ in plan["shown"]}
    _mount(None, "/", None, _REC | _PRIVATE)
    base = "/tmp"  # noqa: S108 - any folder that exists everywhere; hidden only from ourselves
    _mount("tmpfs", base, "tmpfs", _NOSUID | _NODEV, "size=1m,mode=0755")
    os.mkdir(f"{base}/.outside")
    _check(
        _libc.syscall(_number(_SYS_PIVOT_ROOT), base.encode(), f"{base}/.outside".encode()),
        "pivot_root",
    )
    os.chdir("/")
    for path, target in plan["links"]:
        os.symlink(target, path)
    os.mkdir("/proc")
    _mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    _build_devices(plan)
    _scratch("/tmp", plan["scratch_bytes"])  # noqa: S108 - our own
    for path, writable in plan["shown"]:
        _bind(sources[path], path)
        _restrict(path, _NOSUID | _NODEV | (0 if writable else _RDONLY))
    _write_accounts(plan["inner_id"])
    _check(_libc.umount2(b"/.outside", _DETACH), "umount /.outside")
    os.rmdir("/.outside")
    _mount(None, "/", None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)
    socket.sethostname("sandbox")
    os.chdir("/tmp")  # noqa: S108 - our own


def _build_devices(plan: dict[str, Any]) -> None:
    for device in plan["devices"]:
        _bind(device, device)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"/dev/{name}")
    _scratch("/dev/shm", plan["scratch_bytes"])  # noqa: S108 - our own


def _scratch(path: str, size_bytes: int) -> None:
    os.makedirs(path)
    _mount("tmpfs", path, "tmpfs", _NOSUID | _NODEV, f"size={size_bytes},nr_inodes=100k,mode=1777")


def _write_accounts(inner: int) -> None:
    """One account, so that whoever asks for its name gets one."""
    os.makedirs("/etc", exist_ok=True)
    _write("/etc/passwd", f"candidate:x:{inner}:{inner}::/tmp:/bin/sh\n")
    _write("/etc/group", f"candidate:x:{inner}:\n")


def _bind(source: str, path: str) -> None:
    """Bind a file, folder or device of the outside at `path`, mounts below it included."""
    outside = f"/.outside{source}"
    if not os.path.lexists(outside):
        raise FileNotFoundError(2, "no such file or folder to show in the sandbox", source)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if stat.S_ISDIR(os.stat(outside).st_mode):
        os.makedirs(path, exist_ok=True)
    elif not os.path.lexists(path):
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    _mount(outside, path, None, _BIND | _REC)


def _restrict(path: str, wanted: int) -> None:
    """Remount everything at and below `path` with those flags; flags it has may be locked."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        points = [line.split()[4].encode("utf-8", "surrogateescape") for line in file]
    real = os.path.realpath(path).encode("utf-8", "surrogateescape")
    for raw in sorted(set(points)):
        point = re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), raw)
        if point == real or point.startswith(real.rstrip(b"/") + b"/"):
            name = os.fsdecode(point)
            flags = os.statvfs(name).f_flag
            keep = (_RDONLY, _NOSUID, _NODEV, _NOEXEC, _NOATIME, _NODIRATIME)
            kept = sum(flag for flag in keep if flags & flag)
            relatime = _RELATIME if flags & os.ST_RELATIME else 0
            _mount(None, name, None, _REMOUNT | _BIND | kept | relatime | wanted)


def _allow_no_namespaces() -> None:
    """Below our user namespace there can be no other; only its owner could allow them again."""
    for kind in _COUNTED:
        path = f"/proc/sys/user/max_{kind}_namespaces"
        if os.path.lexists(path):  # that of time namespaces since 5.6
            _write(path, "0")


def _drop_privileges(plan: dict[str, Any], alive: int) -> None:
    """Limits, then the uid, then every capability; from here on nothing comes back."""
    processes, memory = plan["processes"], plan["memory_bytes"]
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, plan["scratch_bytes"])
    _limit(resource.RLIMIT_SIGPENDING, plan["timers"])
    if memory:
        _limit(resource.RLIMIT_DATA, memory)
    for capability in range(64):
        _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    if plan["outer_uid"] == 0:
        os.setgroups([])
        os.setresgid(*[plan["inner_id"]] * 3)
        os.setresuid(*[plan["inner_id"]] * 3)
    header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    _check(_libc.capset(header, nothing), "capset")
    _check(_libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if processes:
        # One more for ourselves, who reap.
        _limit(resource.RLIMIT_NPROC, processes + 1)
    _check(_libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0), "dumpable")
    _check(_libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "death signal")
    if plan["filter"]:
        _filter(bytes.fromhex(plan["filter"]))
    if select.select([alive], [], [], 0)[0]:
        raise ProcessLookupError("the process outside is gone")


def _filter(code: bytes) -> None:
    """System calls are refused from here on, for ourselves as well."""
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HP", len(code) // 8, ctypes.addressof(buffer))
    call = (_number(_SYS_SECCOMP), _SET_MODE_FILTER, _SPEC_ALLOW, program)
    _check(_libc.syscall(*call), "filter of system calls")


def _limit(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def _clone(flags: int) -> int:
    """fork() into new namespaces. The arguments after the flags are all absent on any machine."""
    pid = int(_libc.syscall(_number(_SYS_CLONE), ctypes.c_ulong(flags), None, None, None, None))
    _check(pid, "new namespaces")
    return pid


def _number(table: dict[str, int]) -> int:
    machine = os.uname().machine
    if machine not in table:
        raise OSError(38, f"engine unshare knows no system calls of {machine}")
    return table[machine]


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    result = _libc.mount(
        os.fsencode(source) if source else None,
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        data.encode() or None,
    )
    _check(result, f"mount {target}")


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _refuse(error: BaseException) -> int:
    os.write(2, f"sandbox: {error}\n".encode("utf-8", "replace"))
    return FAILED


if __name__ == "__main__":
    sys.exit(main())

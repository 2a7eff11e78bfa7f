"""The filter of system calls, run by an interpreter of its few instructions: any machine's."""

import errno
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from pike_hpc.sandbox import narrow
from pike_hpc.sandbox.filter import MACHINES, seccomp

ALLOWED = 0
BITS = {"NEWTIME": 0x80, "NEWNS": 0x20000, "NEWUSER": 0x10000000, "NEWNET": 0x40000000}
THREAD = 0x3D0F00
"""What pthread_create asks of clone."""


def verdict(machine, number, *arguments, audit=None):
    """The errno that a call gets; 0 where it is allowed."""
    audit = MACHINES[machine].audit if audit is None else audit
    data = struct.pack("<IIQ6Q", number, audit, 0, *arguments, *[0] * (6 - len(arguments)))
    code = [
        struct.unpack("<HBBI", seccomp(machine)[at : at + 8]) for at in range(0, size(machine), 8)
    ]
    at, loaded = 0, 0
    while True:
        kind, then, otherwise, value = code[at]
        at += 1
        if kind == 0x20:
            loaded = struct.unpack_from("<I", data, value)[0]
        elif kind == 0x06:
            assert value == 0x7FFF0000 or value >> 16 == 0x5
            return 0 if value == 0x7FFF0000 else value & 0xFFFF
        else:
            holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[kind]
            at += then if holds else otherwise


def size(machine):
    return len(seccomp(machine))


@pytest.fixture(params=MACHINES)
def machine(request):
    return request.param


def number(machine, name):
    return MACHINES[machine].numbers[name]


@pytest.mark.parametrize("bit", BITS)
def test_no_namespace_can_be_made(machine, bit):
    if bit != "NEWTIME":  # for clone these bits are the signal at its end
        assert verdict(machine, number(machine, "clone"), BITS[bit] | 17) == errno.EPERM
    assert verdict(machine, number(machine, "unshare"), BITS[bit]) == errno.EPERM
    assert verdict(machine, number(machine, "clone3")) == errno.ENOSYS
    assert verdict(machine, number(machine, "setns")) == errno.EPERM


def test_nobody_chooses_who_buries_its_dead(machine):
    """Else a program hides that it forked while it was stopped."""
    assert verdict(machine, number(machine, "clone"), 0x8000 | 17) == errno.EPERM
    assert verdict(machine, number(machine, "prctl"), 36) == errno.EPERM
    for harmless in (1, 15, 21, 38):
        assert verdict(machine, number(machine, "prctl"), harmless) == ALLOWED


def test_nobody_attaches_a_filter(machine):
    """The kernel compiles them, and frees them in the background for who is stopped or dead."""
    assert verdict(machine, number(machine, "seccomp"), 1) == errno.EPERM
    assert verdict(machine, number(machine, "prctl"), 22, 2) == errno.EPERM
    for option in (26, 50, 51, 52):
        assert verdict(machine, number(machine, "setsockopt"), 3, 1, option) == errno.EPERM
        assert verdict(machine, number(machine, "setsockopt"), option, 0, option) == ALLOWED
    for option in (2, 7, 8, 16, 25, 27, 53):
        assert verdict(machine, number(machine, "setsockopt"), 3, 1, option) == ALLOWED


def test_processes_threads_and_unix_sockets_are_allowed(machine):
    for flags in (17, THREAD, 0x4111):
        assert verdict(machine, number(machine, "clone"), flags) == ALLOWED
    assert verdict(machine, number(machine, "unshare"), 0x400) == ALLOWED
    for name in ("socket", "socketpair"):
        assert verdict(machine, number(machine, name), 1) == ALLOWED


@pytest.mark.parametrize("family", [0, 2, 10, 16, 17, 38, 40])
def test_other_families_of_sockets_are_not_known(machine, family):
    for name in ("socket", "socketpair"):
        assert verdict(machine, number(machine, name), family) == errno.EAFNOSUPPORT


def test_every_listed_call_is_refused_and_every_other_one_allowed(machine):
    listed = set(MACHINES[machine].numbers.values())
    names = ("clone", "unshare", "socket", "socketpair", "prctl", "setsockopt")
    some = {number(machine, name) for name in names}
    for call in range(470):
        refused = verdict(machine, call, 1) != ALLOWED
        assert refused == (call in listed - some), call


def test_another_convention_of_calls_is_not_known(machine):
    i386, arm = 0x40000003, 0x40000028
    for audit in (i386, arm):
        assert verdict(machine, 0, audit=audit) == errno.ENOSYS
    assert verdict("x86_64", 0x40000000 | 272, BITS["NEWUSER"]) == errno.ENOSYS


def test_no_filter_for_a_machine_whose_numbers_are_not_known():
    assert seccomp("ppc64le") == b""


def test_the_kernel_takes_it_and_says_what_the_interpreter_says():
    name = os.uname().machine
    if name not in MACHINES:
        pytest.skip(f"no filter for {name}")
    code = (
        "import ctypes, os, socket, subprocess, threading\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "threading.Thread(target=print).start(); subprocess.run(['true'], check=True)\n"
        "socket.socketpair()\n"
        "for flags in (0x400, 0x10000000, 0x40000000):\n"
        "    print(0 if libc.unshare(flags) == 0 else ctypes.get_errno())\n"
        "print(libc.ptrace(0, 0, 0, 0), ctypes.get_errno())\n"
        "one, _ = socket.socketpair()\n"
        "one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)\n"
        "try: one.setsockopt(socket.SOL_SOCKET, 26, bytes(16))\n"
        "except OSError as error: print(error.errno)\n"
        "print(libc.prctl(22, 1), ctypes.get_errno())\n"
        "try: socket.socket()\n"
        "except OSError as error: print(error.errno)\n"
    )
    script = [sys.executable, "-I", "-S", str(Path(narrow.__file__))]
    done = subprocess.run(
        [*script, seccomp(name).hex(), sys.executable, "-I", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "0",
        "1",
        "1",
        "-1",
        "1",
        "1",
        "-1",
        "1",
        str(errno.EAFNOSUPPORT),
    ]


@pytest.mark.parametrize(
    ("code", "program", "status", "said"),
    [
        ("00" * 8, "true", 125, "no filter of system calls"),
        (seccomp(os.uname().machine).hex(), "absent-program", 127, "absent-program: No such file"),
    ],
)
def test_what_cannot_be_started_says_why(code, program, status, said):
    script = [sys.executable, "-I", "-S", str(Path(narrow.__file__))]
    done = subprocess.run([*script, code, program], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert said in done.stderr

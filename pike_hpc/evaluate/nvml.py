"""NVML by ctypes: what a GPU says of its clock, its slowdowns, its heat, and who runs on it.

Eight calls, bound here rather than through nvidia-ml-py: the judge runs in an image that carries
torch and need not carry that package, and a library that is an argument has a simulated twin
(`nvml_simulated`). Reading needs no rights. Whatever can't be read is None: a container without
libnvidia-ml, a driver too old for a call, a GPU that has no such sensor. No torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass
from typing import Any

LIBRARY = "libnvidia-ml.so.1"

SUCCESS, TOO_SMALL = 0, 7
"""NVML_SUCCESS, NVML_ERROR_INSUFFICIENT_SIZE."""

SM_CLOCK, GPU_TEMPERATURE = 1, 0
"""NVML_CLOCK_SM, NVML_TEMPERATURE_GPU."""

IDLE = 0x1
"""nvmlClocksEventReasonGpuIdle."""
POWER_CAP = 0x4
"""nvmlClocksEventReasonSwPowerCap: this load draws all the power there is; its own doing."""
HARDWARE = 0x8 | 0x40 | 0x80
"""nvmlClocksEventReason HwSlowdown, HwThermalSlowdown, HwPowerBrakeSlowdown."""

REASONS: Mapping[int, str] = {
    0x2: "applications_clocks",
    POWER_CAP: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
"""Why a clock is not as high as it could be, by bit. Idleness is no reason worth a record."""


class Process(ctypes.Structure):
    """nvmlProcessInfo_t of the calls that end in _v2 and _v3, 24 bytes."""

    _fields_ = (
        ("pid", c_uint),
        ("used_bytes", c_ulonglong),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    )


_PROCESSES = (c_void_p, POINTER(c_uint), POINTER(Process))

CALLS: Mapping[str, tuple[Sequence[str], tuple[Any, ...]]] = {
    "init": (("nvmlInit_v2",), ()),
    "gpu": (("nvmlDeviceGetHandleByUUID",), (c_char_p, POINTER(c_void_p))),
    "clock": (("nvmlDeviceGetClockInfo",), (c_void_p, c_int, POINTER(c_uint))),
    "reasons": (
        ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
        (c_void_p, POINTER(c_ulonglong)),
    ),
    "temperature": (("nvmlDeviceGetTemperature",), (c_void_p, c_int, POINTER(c_uint))),
    "power": (("nvmlDeviceGetPowerUsage",), (c_void_p, POINTER(c_uint))),
    "compute": (
        ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"),
        _PROCESSES,
    ),
    "graphics": (
        ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"),
        _PROCESSES,
    ),
}
"""Symbols (the newest first) and argument types; each returns an nvmlReturn_t."""

MOST_PROCESSES = 1024
"""A list that is longer counts as unread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at a GPU; None is what could not be read."""

    sm_mhz: int | None = None
    reasons: int | None = None
    """Bits of REASONS, and IDLE."""
    temperature_c: int | None = None
    power_w: float | None = None
    processes: frozenset[int] | None = None
    """Ids as the driver tells them: of the host, or of our PID namespace, as the driver's version
    has it. They are only ever compared with each other."""


class NvmlError(RuntimeError):
    """NVML can't be asked about the GPU; the message says why."""


class Gpu:
    """One GPU, to be looked at."""

    def __init__(self, library: Any, uuid: str) -> None:
        """Bind what there is of the calls and find the GPU.

        Args:
            library: what has the functions of CALLS as attributes, by C's calling convention.
            uuid: as nvidia-smi writes it: GPU-...

        Raises:
            NvmlError: NVML does not start, or knows no such GPU.
        """
        self._calls: dict[str, Callable[..., int]] = {}
        for name, (symbols, arguments) in CALLS.items():
            found = next((f for s in symbols if (f := getattr(library, s, None))), None)
            if found is not None:
                found.argtypes, found.restype = arguments, c_int
                self._calls[name] = found
        self._handle = c_void_p()
        for name, given in (("init", ()), ("gpu", (uuid.encode(), byref(self._handle)))):
            code = self._call(name, *given)
            if code != SUCCESS:
                said = "is missing" if code is None else f"returned {code}"
                raise NvmlError(f"NVML does not know {uuid}: {CALLS[name][0][0]} {said}")

    @classmethod
    def open(cls, uuid: str) -> Gpu:
        """A GPU of this machine. Raises NvmlError."""
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise NvmlError(f"no NVML here: {error}") from None
        return cls(library, uuid)

    def sample(self, processes: bool = True) -> Sample:
        """Look once, at `processes` too or not. The clock first: it falls when nothing runs.

        Listing them takes longest: 4.4 ms where all else takes 0.07 (docs/evaluator.md, "A GPU that
        is slowed or shared").
        """
        clock = self._number("clock", c_uint, SM_CLOCK)
        reasons = self._number("reasons", c_ulonglong)
        temperature = self._number("temperature", c_uint, GPU_TEMPERATURE)
        power_mw = self._number("power", c_uint)
        return Sample(
            sm_mhz=clock,
            reasons=reasons,
            temperature_c=temperature,
            power_w=None if power_mw is None else power_mw / 1e3,
            processes=self._processes() if processes else None,
        )

    def _processes(self) -> frozenset[int] | None:
        """Those that compute; those that draw are told where they can be."""
        computing = self._listed("compute")
        if computing is None:
            return None
        return computing | (self._listed("graphics") or frozenset())

    def _listed(self, name: str) -> frozenset[int] | None:
        room = 64
        while room <= MOST_PROCESSES:
            count, found = c_uint(room), (Process * room)()
            code = self._call(name, self._handle, byref(count), found)
            if code == SUCCESS:
                return frozenset(found[i].pid for i in range(min(count.value, room)))
            if code != TOO_SMALL:
                return None
            room *= 4
        return None

    def _number(self, name: str, kind: type[Any], *which: int) -> int | None:
        value = kind()
        code = self._call(name, self._handle, *which, byref(value))
        return int(value.value) if code == SUCCESS else None

    def _call(self, name: str, *arguments: Any) -> int | None:
        """The call's result; None where this library has no such call."""
        call = self._calls.get(name)
        return None if call is None else call(*arguments)


def named(reasons: int) -> tuple[str, ...]:
    """The names of the bits that are set, in their order."""
    return tuple(name for bit, name in REASONS.items() if reasons & bit)

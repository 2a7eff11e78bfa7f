"""An NVML without a GPU: the same symbols and the same rules, over sensors that one sets.

For machines without a GPU and for what no GPU does on demand: hardware slowdowns, neighbours.
Pass it to `nvml.Gpu` as its library.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from ctypes import CFUNCTYPE, c_int
from dataclasses import dataclass
from typing import Any

from pike_hpc.evaluate.nvml import CALLS, GPU_TEMPERATURE, SM_CLOCK, SUCCESS, TOO_SMALL, Gpu

UNINITIALISED, INVALID, UNSUPPORTED, NOT_FOUND = 1, 2, 3, 6
"""NVML_ERROR_UNINITIALIZED, _INVALID_ARGUMENT, _NOT_SUPPORTED, _NOT_FOUND."""

UUID = "GPU-00000000-0000-4000-8000-000000000001"


@dataclass(slots=True)
class Sensors:
    """What the GPU would say now."""

    sm_mhz: int = 1980
    reasons: int = 0
    temperature_c: int = 40
    power_w: float = 300.0
    computing: tuple[int, ...] = ()
    drawing: tuple[int, ...] = ()


class SimulatedNvml:
    """What ctypes.CDLL("libnvidia-ml.so.1") would be, with one GPU of the name UUID."""

    def __init__(
        self,
        sensors: Sensors | None = None,
        *,
        lacks: Collection[str] = (),
        fails: Mapping[str, int] | None = None,
    ) -> None:
        """A machine.

        Args:
            sensors: of its GPU; may be changed at any time.
            lacks: symbols that this version of the library does not have.
            fails: the nvmlReturn_t that a symbol returns whatever it is given.
        """
        self.sensors = sensors or Sensors()
        self.calls: list[str] = []
        """Every call made so far, by symbol."""
        self._fails = dict(fails or {})
        self._ready = False
        for name, (symbols, arguments) in CALLS.items():
            for symbol in symbols:
                if symbol not in lacks:
                    answer = CFUNCTYPE(c_int, *arguments)(self._answer(name, symbol))
                    setattr(self, symbol, answer)

    def gpu(self) -> Gpu:
        """Its GPU. Raises NvmlError as the real one would."""
        return Gpu(self, UUID)

    def _answer(self, name: str, symbol: str) -> Callable[..., int]:
        rule: Callable[..., int] = getattr(self, f"_{name}")

        def answer(*arguments: Any) -> int:
            self.calls.append(symbol)
            if symbol in self._fails:
                return self._fails[symbol]
            if name != "init" and not self._ready:
                return UNINITIALISED
            if name not in ("init", "gpu") and arguments[0] != id(self):
                return INVALID
            return rule(*arguments)

        return answer

    def _init(self) -> int:
        self._ready = True
        return SUCCESS

    def _gpu(self, uuid: bytes, handle: Any) -> int:
        if uuid != UUID.encode():
            return NOT_FOUND
        handle[0] = id(self)
        return SUCCESS

    def _clock(self, _: int, which: int, value: Any) -> int:
        return self._give(value, self.sensors.sm_mhz, which == SM_CLOCK)

    def _reasons(self, _: int, value: Any) -> int:
        return self._give(value, self.sensors.reasons)

    def _temperature(self, _: int, which: int, value: Any) -> int:
        return self._give(value, self.sensors.temperature_c, which == GPU_TEMPERATURE)

    def _power(self, _: int, value: Any) -> int:
        return self._give(value, round(self.sensors.power_w * 1e3))

    def _compute(self, _: int, count: Any, into: Any) -> int:
        return self._list(self.sensors.computing, count, into)

    def _graphics(self, _: int, count: Any, into: Any) -> int:
        return self._list(self.sensors.drawing, count, into)

    def _give(self, into: Any, value: int, known: bool = True) -> int:
        if not known:
            return INVALID
        into[0] = value
        return SUCCESS

    def _list(self, pids: tuple[int, ...], count: Any, into: Any) -> int:
        room, count[0] = count[0], len(pids)
        if len(pids) > room:
            return TOO_SMALL
        for i, pid in enumerate(pids):
            into[i].pid, into[i].used_bytes = pid, 1 << 20
        return SUCCESS

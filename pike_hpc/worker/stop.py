"""The wish to stop, where the loop looks for it: `machine.stop` holds it, for agents as well."""

from pike_hpc.machine import Stop, stop_on_signals

__all__ = ["Stop", "stop_on_signals"]

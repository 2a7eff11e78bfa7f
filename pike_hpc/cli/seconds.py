"""A number of seconds on the command line."""

from __future__ import annotations

import argparse
import math

from pike_hpc.config.workflow import MOST_S


def seconds(text: str) -> float:
    """A time that something may take, for argparse's `type`."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number <= MOST_S:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time; valid: seconds above 0, at most {MOST_S:.0f} (a week)"
        )
    return number


def whole_seconds(text: str) -> int:
    """Likewise, for programs that take no fractions."""
    number = seconds(text)
    if number != int(number):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of seconds")
    return int(number)

"""Whether a task that could not be judged gives numpy's arrays where tensors are wanted.

Asked after a failure alone: what a model or torch says of an array helps nobody.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from pike_hpc.records import Task
from pike_hpc.tasks.load import build


def arrays_among_inputs(task: Task) -> str | None:
    """The sentence about them; None where there are none, or nobody can tell."""
    with suppress(Exception, SystemExit):
        for number, value in enumerate(build(task).inputs(), 1):
            if _has_array(value):
                return (
                    f"get_inputs() gives a numpy array as argument {number}, where tensors are "
                    "wanted; return torch.from_numpy(array), or draw it with torch itself"
                )
    return None


def _has_array(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    parts = value if isinstance(value, list | tuple) else (value,)
    return any(isinstance(part, np.ndarray) for part in parts)

"""From how a runner failed to a status and one sentence, both of the judge's own making.

What a candidate controls here (a code, an exit status, the end of its log) chooses among failures
and among fixed sentences; none of them passes.
"""

from __future__ import annotations

import signal

import torch

from pike_hpc.evaluate.judge_arrays import arrays_among_inputs
from pike_hpc.evaluate.judge_bench import Crowded, Shortage, Unfit
from pike_hpc.evaluate.judge_host import Ending
from pike_hpc.evaluate.judge_link import RunnerFailed
from pike_hpc.evaluate.runner import NO_MEMORY, Code, Op, code_of
from pike_hpc.evaluate.runner.cuda_driver import DeviceMemoryError
from pike_hpc.evaluate.screen import printable
from pike_hpc.records import EvalStatus, PikeError, Task

_CODES: dict[Code, tuple[EvalStatus, str]] = {
    Code.RAISED: (EvalStatus.RUNTIME_ERROR, "raised an exception {while_}; see the log"),
    Code.IMPORT_FAILED: (EvalStatus.BUILD_ERROR, "could not be imported; see the log"),
    Code.COMPILE_FAILED: (EvalStatus.BUILD_ERROR, "did not compile {while_}; see the log"),
    Code.NO_MODEL: (EvalStatus.REJECTED, "defines neither ModelNew nor Model once imported"),
    Code.NOT_A_MODULE: (EvalStatus.REJECTED, "its ModelNew makes no torch.nn.Module"),
    Code.CONSTRUCTOR_RAISED: (
        EvalStatus.RUNTIME_ERROR,
        "its constructor raised an exception; see the log",
    ),
    Code.NEED_SEED: (
        EvalStatus.WRONG_STRUCTURE,
        "the reference's weights have no place in it: use its names or its shapes in order, or "
        "define prepare(state_dict)",
    ),
    Code.PREPARE_RAISED: (
        EvalStatus.RUNTIME_ERROR,
        "prepare(state_dict) raised an exception; see the log",
    ),
    Code.OUT_OF_MEMORY: (EvalStatus.OUT_OF_MEMORY, "ran out of memory {while_}"),
    Code.PLACED: (EvalStatus.RUNTIME_ERROR, "spoke of its weights unasked, {while_}"),
    Code.OUTPUT_TREE: (
        EvalStatus.WRONG_STRUCTURE,
        "its output is not built like the reference's (tuples, dicts, tensors); see the log",
    ),
    Code.OUTPUT_TYPE: (
        EvalStatus.WRONG_STRUCTURE,
        "an output is no plain tensor where the reference's is; see the log",
    ),
    Code.OUTPUT_SHAPE: (
        EvalStatus.WRONG_STRUCTURE,
        "an output has another shape than the reference's; see the log",
    ),
    Code.OUTPUT_DTYPE: (
        EvalStatus.WRONG_STRUCTURE,
        "an output has another kind of number than the reference's; see the log",
    ),
    Code.OUTPUT_DEVICE: (
        EvalStatus.WRONG_STRUCTURE,
        "an output is on the host where the reference's is on the GPU; see the log",
    ),
}

_WHILE = {
    None: "while starting",
    Op.IMPORT: "while being imported",
    Op.LOAD: "while being constructed",
    Op.RELOAD: "while taking weights",
    Op.CALL: "in forward",
    Op.AGAIN: "after forward",
    Op.NULL: "after forward",
    Op.RESET: "between calls",
    Op.WATCH: "between calls",
    Op.REST: "between calls",
    Op.TOUCH: "between calls",
    Op.PROFILE: "while being profiled",
    Op.KEEP: "while its compile cache was packed",
    Op.SHED: "after its answers were compared",
}

FULL = "CUDA_ERROR_OUT_OF_MEMORY"
"""What the driver says of a GPU that has no memory left."""


def explain(
    failed: RunnerFailed, ending: Ending, calls: int, allowed_s: float
) -> tuple[EvalStatus, str]:
    """Status and sentence for a candidate's runner that failed.

    Args:
        failed: what the judge saw at the doorbell.
        ending: what the lane saw of the process.
        calls: calls of forward that were asked for so far.
        allowed_s: the time it had, for the sentence.
    """
    doing = _WHILE[failed.op] + (f", call {calls}" if failed.op is Op.CALL else "")
    if failed.kind == "code" and failed.code is not None:
        status, text = _CODES[failed.code]
        return status, text.format(while_=doing)
    if failed.kind == "deadline":
        return EvalStatus.TIMEOUT, f"did not finish within {allowed_s:.0f} s, stopped {doing}"
    if failed.kind == "unasked":
        return EvalStatus.RUNTIME_ERROR, f"rang the doorbell without being asked, {doing}"
    return _gone(ending, doing)


def _gone(ending: Ending, doing: str) -> tuple[EvalStatus, str]:
    status = ending.status
    if status is None:
        return EvalStatus.RUNTIME_ERROR, f"gave up its doorbell {doing}"
    number = -status if status < 0 else status - 128
    if status in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return EvalStatus.OUT_OF_MEMORY, f"was killed {doing}, most likely for its memory"
    if NO_MEMORY.search(ending.last_words):
        return EvalStatus.OUT_OF_MEMORY, f"ran out of memory {doing}"
    if number > 0 and number in {s.value for s in signal.Signals}:
        return EvalStatus.RUNTIME_ERROR, f"crashed with {signal.Signals(number).name} {doing}"
    return EvalStatus.RUNTIME_ERROR, f"exited with status {status} {doing}"


_REFERENCE: dict[str, str] = {
    "gone": "it ended",
    "deadline": "it met its deadline",
    "unasked": "it rang the doorbell without being asked",
}


def reference_failed(failed: RunnerFailed, ending: Ending | None = None) -> str:
    """The sentence for a failure of the reference's own runner, which is nobody's fault here.

    Args:
        failed: what it did not do.
        ending: how it ended, where that is known.
    """
    doing = _WHILE[failed.op]
    said = _REFERENCE.get(failed.kind)
    if said is None:
        said = "it failed" if failed.code is None else f"it answered {failed.code.name}"
    said = f"{said} {doing}"
    if failed.kind == "gone" and ending is not None and ending.status is not None:
        said = f"it {_gone(ending, doing)[1]}"
    at = f" ({failed.op.name})" if failed.op is not None else ""
    return f"the reference's runner failed: {said}{at}"


def not_started(failed: RunnerFailed, ending: Ending) -> Unfit:
    """What a candidate's runner that failed before it was asked anything is: no fault of its."""
    lines = ending.last_words.strip().splitlines() or ["it said nothing"]
    if not failed.lacked_memory(ending):
        return Unfit(f"the sandboxed runner did not start: {printable(lines[-1])}")
    said = next((line for line in reversed(lines) if NO_MEMORY.search(line)), lines[-1])
    return Crowded(f"the sandboxed runner did not start: {printable(said)}")


def ran_short(error: BaseException, ending: Ending | None = None) -> bool:
    """Whether the judge failed for want of memory, or the reference's runner did.

    `ending`: of that runner, where it is known.
    """
    if isinstance(error, Shortage):
        return True
    if isinstance(error, RunnerFailed):
        return error.lacked_memory(ending)
    if isinstance(error, DeviceMemoryError):
        return error.result == FULL
    return code_of(error) is Code.OUT_OF_MEMORY


def cannot_share(error: Exception) -> bool:
    """Whether a judge that never shared GPU memory with a runner failed for just that.

    A runner that ends before it is asked anything could not map what it was given; a full GPU is
    another matter.
    """
    if isinstance(error, DeviceMemoryError):
        return error.result != FULL
    return isinstance(error, RunnerFailed) and error.op is None


def task_failed(error: BaseException, task: Task) -> str:
    """One line of what went wrong with a task, for a person."""
    if isinstance(error, torch.OutOfMemoryError) and torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return (
            f"it needs more GPU memory than there is: {free / 2**30:.1f} of {total / 2**30:.1f} "
            "GiB were free when it ran out"
        )
    if isinstance(error, RunnerFailed):
        return reference_failed(error)
    if (arrays := arrays_among_inputs(task)) is not None:
        return arrays
    if isinstance(error, PikeError):
        return printable("; ".join(filter(None, (error.what, error.fix))), 400)
    return printable(f"{type(error).__name__}: {error}", 400)

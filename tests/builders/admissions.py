"""Admissions of tiny tasks in this process: of `qkv_task` with a body, or of a source."""

import contextlib

import torch
from builders.qkv_task import SOURCE

from pike_hpc.evaluate.judge_admission import admit
from pike_hpc.evaluate.judge_secrets import Secrets
from pike_hpc.evaluate.judge_truth import Truth, WeightsBy
from pike_hpc.records import Task, Variant
from pike_hpc.tasks.load import build


@contextlib.contextmanager
def truth_of(
    body,
    inputs="torch.randn(4, 8, 16)",
    variant=Variant.ADMITTED,
    dtype="torch.float32",
    source=SOURCE,
):
    source = source.format(body=body).replace("torch.randn(4, 8, 16)", inputs)
    source = source.replace("nn.Linear(16, 48)", f"nn.Linear(16, 48, dtype={dtype})")
    task = Task(suite="tests", id="1", name="tiny", source=source, variant=variant)
    truth = Truth(build(task), WeightsBy.STATE, torch.device("cpu"), Secrets(b"key"))
    try:
        yield truth, task
    finally:
        truth.close()


def yardstick_of(body, **options):
    with truth_of(body, **options) as (truth, task):
        return admit(truth, task.digest)


def admission_of(body, **options):
    return yardstick_of(body, **options).admission

"""Prompts made from a task's view: what judged the candidates, and where their time goes."""

import dataclasses

import pytest

from pike_hpc.agent import Models, Seat
from pike_hpc.llm import ScriptedModel, load_script
from pike_hpc.records import (
    Candidate,
    Environment,
    EvalRequest,
    Evaluated,
    KernelShare,
    Profile,
    ProfileSource,
    Proposal,
    Proposed,
    Role,
    TaskOpened,
    Tier,
)
from pike_hpc.search import AskModel, replay
from pike_hpc.tasks import find_task
from pike_hpc.worker.simulated import simulated_result

TASK = find_task("level3-pike/4")
KIND = "nvidia-h200"
H200 = Environment(
    device="NVIDIA H200", torch="2.11.0+cu130", python="3.12.3", driver="CUDA 13.0", host="nid1"
)


def judged(name, operator, profile=None, environment=H200):
    """The events of a candidate that passed."""
    source = f"class ModelNew: name = {name!r}\n"
    candidate = Candidate(task_digest=TASK.digest, source=source)
    request = EvalRequest(
        task=TASK, candidate_source=source, device_kind=KIND, image_digest="image"
    )
    seeds = (simulated_result(request, seed) for seed in range(100))
    result = next(result for result in seeds if result.timing is not None)
    result = dataclasses.replace(result, environment=environment, profile=profile)
    proposal = Proposal(candidate_id=candidate.id, operator=operator)
    made = Proposed(node=name, proposal=proposal, source=source)
    return candidate.id, [made, Evaluated(result=result)]


def kernel(name):
    return Profile(
        source=ProfileSource.KERNELS,
        launches=7.0,
        kernels=(KernelShare(name=name, share=0.9, launches=3.0),),
    )


def prompt(events, role=Role.OPTIMISE, parent_id=None, kind=KIND):
    view = replay([TaskOpened(task=TASK, device_kind=kind), *events])
    seat = Seat(model=ScriptedModel(load_script("default")), temperature=0.0, max_output_tokens=9)
    models = Models({role: seat for role in Role}, tuple(Tier))
    action = AskModel(node="p0/b0/r0", role=role, parent_id=parent_id)
    return models.prepare(action, view, TASK, kind).request.user


def test_the_environment_that_judged_is_named_and_its_host_is_not():
    _, events = judged("a", "rule:half_body")
    user = prompt(events)
    assert "Device: nvidia-h200 (NVIDIA H200, CUDA 13.0)\n" in user
    assert "PyTorch: 2.11.0+cu130, Python 3.12.3\n" in user
    assert "nid1" not in user


def test_the_first_that_judged_stays_the_one_named():
    later = dataclasses.replace(H200, torch="2.13.0+cu130")
    blank = Environment(device="nvidia-h200 (simulated)")
    events = [
        event
        for name, environment in (("a", blank), ("b", H200), ("c", later))
        for event in judged(name, "rule:half_body", environment=environment)[1]
    ]
    assert "PyTorch: 2.11.0+cu130, Python 3.12.3\n" in prompt(events)


def test_before_any_verdict_the_supported_versions_are_named():
    user = prompt([])
    assert "Device: nvidia-h200\n" in user
    assert "PyTorch: 2.11 to 2.13\n" in user


@pytest.mark.parametrize("role", [Role.BRAINSTORM, Role.OPTIMISE, Role.FIX])
def test_without_a_parent_the_profile_is_that_of_the_reference(role):
    _, reference = judged("a", "rule:identity", kernel("eager_gemm"))
    _, other = judged("b", "rule:half_body", kernel("half_gemm"))
    user = prompt([*other, *reference], role)
    assert "90 % eager_gemm, 3 a call" in user
    assert "half_gemm" not in user
    assert "spends its time" not in prompt(other, role)


def test_with_a_parent_the_profile_is_that_of_the_parent():
    _, reference = judged("a", "rule:identity", kernel("eager_gemm"))
    parent_id, parent = judged("b", "rule:half_body", kernel("half_gemm"))
    user = prompt([*reference, *parent], Role.OPTIMISE, parent_id)
    assert "90 % half_gemm, 3 a call" in user
    assert "eager_gemm" not in user


def test_only_gpus_are_told_of_cuda():
    assert "TORCH_CUDA_ARCH_LIST" in prompt([])
    assert "CUDA" not in prompt([], kind="cpu")

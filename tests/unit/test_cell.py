"""What the processes of a lane are started with."""

import tempfile
from pathlib import Path

import pytest

from pike_hpc.evaluate.cell import Cell
from pike_hpc.evaluate.wire import RunnerRole
from pike_hpc.sandbox import Engine

EXPANDABLE = "expandable_segments:True"


@pytest.fixture
def folder():
    """One that a runner may enter, who is nobody where we are root."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture
def cell(folder):
    """Makes a cell whose interpreter writes down and says its environment."""
    python = folder / "python"
    python.write_text('#!/bin/sh\nenv | tee "$HOME/seen"\n', encoding="utf-8")
    python.chmod(0o755)

    def make(device: str, gpu: str | None = None) -> Cell:
        return Cell(
            engine=Engine.NONE,
            folder=folder,
            device=device,
            gpu=gpu,
            threads=1,
            python=str(python),
            memory_mb=256,
            scratch_mb=16,
            processes=4,
            extra={"ASKED": "for"},
        )

    return make


def seen_by_the_judge(cell: Cell, folder: Path) -> dict[str, str]:
    judge = cell.start_judge(folder)
    judge.last_words()  # it has ended
    judge.end()
    lines = (folder / "seen").read_text("utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_on_a_gpu_the_judge_keeps_no_blocks_of_memory_around_what_it_uses(cell, tmp_path):
    seen = seen_by_the_judge(cell("cuda"), tmp_path)
    assert seen["ASKED"] == "for"
    assert seen["PYTORCH_ALLOC_CONF"] == seen["PYTORCH_CUDA_ALLOC_CONF"] == EXPANDABLE


def test_on_a_cpu_there_is_nothing_to_say_about_a_gpu(cell, tmp_path):
    assert EXPANDABLE not in seen_by_the_judge(cell("cpu"), tmp_path).values()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_judge_s_own_large_tensors_are_in_huge_pages(cell, tmp_path, device):
    assert seen_by_the_judge(cell(device), tmp_path)["THP_MEM_ALLOC_ENABLE"] == "1"
    assert "THP_MEM_ALLOC_ENABLE" not in cell(device)._spec("address", tmp_path, tmp_path).env


def test_a_runner_has_the_allocator_that_its_program_would_have_anywhere(cell, tmp_path):
    runner = cell("cuda")._spec("address", tmp_path, tmp_path)
    assert EXPANDABLE not in runner.env.values()


CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


@pytest.mark.parametrize("role", RunnerRole)
def test_a_narrow_runner_has_one_connection_to_the_gpu(cell, folder, role):
    place = folder / "sockets"
    place.mkdir()
    _, said = cell("cuda").start(1, place / "s", role).end(10.0)
    assert "ASKED=for" in said
    assert (f"{CONNECTIONS}=1" in said) is role.one_connection


def test_the_judge_has_one_connection(cell, tmp_path):
    assert seen_by_the_judge(cell("cuda"), tmp_path)[CONNECTIONS] == "1"
    assert CONNECTIONS not in seen_by_the_judge(cell("cpu"), tmp_path)


def test_a_lane_s_gpu_is_the_only_one_for_judge_and_runner(cell, tmp_path):
    one = cell("cuda", "GPU-a")
    runner = one._spec("address", tmp_path, tmp_path)
    assert (runner.gpu, runner.gpu_uuid) == (True, "GPU-a")
    assert runner.env["CUDA_VISIBLE_DEVICES"] == "GPU-a"
    assert seen_by_the_judge(one, tmp_path)["CUDA_VISIBLE_DEVICES"] == "GPU-a"
    every = cell("cuda")._spec("address", tmp_path, tmp_path)
    assert every.gpu_uuid == ""
    assert "CUDA_VISIBLE_DEVICES" not in every.env

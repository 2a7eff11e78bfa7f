"""Which GPUs a worker drives: those that its environment leaves, all of them, each once."""

import dataclasses
import stat
import tempfile
from pathlib import Path

import pytest

from pike_hpc.cli.lanes import open_judges
from pike_hpc.config import resolve
from pike_hpc.config.env import sites_dir
from pike_hpc.evaluate.device import Device, detect, torch_version, visible_among
from pike_hpc.evaluate.gpu_lock import GpuLock
from pike_hpc.launch import expected_lanes, plan_jobs

UUIDS = ("GPU-aa1", "GPU-ab2", "GPU-cc3", "GPU-dd4")


@pytest.mark.parametrize(
    ("visible", "left"),
    [
        ("0,1,2,3", UUIDS),
        ("2", ("GPU-cc3",)),
        ("3, 1", ("GPU-dd4", "GPU-ab2")),
        ("GPU-cc3,GPU-aa1", ("GPU-cc3", "GPU-aa1")),
        ("GPU-c", ("GPU-cc3",)),
        ("1,1", ("GPU-ab2",)),
        ("0,9,1", ("GPU-aa1",)),
        ("-1,0", ()),
        ("GPU-a", ()),
        ("MIG-aa1", ()),
        ("99999999999", ()),
    ],
)
def test_the_environment_is_read_as_cuda_reads_it(visible, left):
    assert visible_among(UUIDS, visible) == left


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """An nvidia-smi of our own that lists four GPUs."""
    program = tmp_path / "nvidia-smi"
    lines = "\n".join(f"NVIDIA H200, {uuid}, 580.1" for uuid in UUIDS)
    program.write_text(f"#!/bin/sh\ncat <<'E'\n{lines}\nE\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


@pytest.mark.skipif("+cpu" in (torch_version() or ""), reason="torch was built without CUDA")
def test_a_device_has_the_gpus_that_may_be_used(smi):
    assert detect("cuda").gpus == UUIDS
    assert detect("nvidia-h200", visible="2,1").gpus == ("GPU-cc3", "GPU-ab2")
    assert detect("auto", visible="9").kind == "cpu"
    assert "CUDA_VISIBLE_DEVICES=9" in detect("auto", visible="9").why


H200 = Device(kind="nvidia-h200", torch_device="cuda", why="", gpus=UUIDS)


@pytest.fixture
def short_tmp():
    """A socket's path may have 107 bytes: a folder of pytest's is nearly as long."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.skipif(torch_version() is None, reason="a lane needs an installed torch")
def test_a_worker_has_a_judge_on_each_gpu_and_their_locks(short_tmp):
    with open_judges(H200, "auto", short_tmp) as judges:
        assert [judge.device_kind for judge in judges] == ["nvidia-h200"] * 4
        assert sorted(p.name for p in short_tmp.glob("*.lock")) == sorted(
            f"pike-gpu-{uuid}.lock" for uuid in UUIDS
        )
        assert len(list(short_tmp.glob("pike-*/lane-*"))) == 4
    assert not list(short_tmp.glob("pike-*/lane-*"))
    for uuid in UUIDS:
        GpuLock.take(short_tmp, uuid).release()


@pytest.mark.skipif(torch_version() is None, reason="a lane needs an installed torch")
def test_on_a_cpu_a_worker_has_one_judge_and_no_lock(short_tmp):
    device = Device(kind="cpu", torch_device="cpu", why="")
    with open_judges(device, "auto", short_tmp) as judges:
        assert [judge.device_kind for judge in judges] == ["cpu"]
    assert not list(short_tmp.glob("*.lock"))


WORKFLOW = """
schema_version: 1
name: quick
tasks: {suite: level3-pike, ids: "4"}
search: {strategy: rules}
workers: {count: 3}
"""


@pytest.fixture
def resolved(tmp_path):
    path = tmp_path / "w.yaml"
    path.write_text(WORKFLOW)
    return resolve(path, "local", environ={}, sites_dir=sites_dir({}), user_config_dir=tmp_path)


def test_one_local_worker_drives_all_gpus(resolved, tmp_path):
    plan = {"python": "python", "lib": tmp_path / "lib"}
    workers, _ = plan_jobs(resolved, tmp_path, ["4"], gpus=UUIDS, **plan)
    assert [job.env["CUDA_VISIBLE_DEVICES"] for job in workers] == [",".join(UUIDS)]
    workers, _ = plan_jobs(resolved, tmp_path, ["4"], **plan)
    assert len(workers) == 3
    assert all("CUDA_VISIBLE_DEVICES" not in job.env for job in workers)


def test_agents_keep_all_lanes_busy(resolved):
    assert expected_lanes(resolved, 0, 1) == 3
    assert expected_lanes(resolved, 4, 3) == 12

    def at_slurm(**job):
        worker_job = dataclasses.replace(resolved.site.worker_job, **job)
        site = dataclasses.replace(resolved.site, scheduler="slurm", worker_job=worker_job)
        return expected_lanes(dataclasses.replace(resolved, site=site), 9, 4)

    assert at_slurm(gpus=0) == 3
    assert at_slurm(gpus=4, cpus=16) == 24
    assert at_slurm(gpus=4, cpus=64) == 72
    assert at_slurm(gpus=1, cpus=16, gres="gpu:A40:2") == 24
    assert at_slurm(cpus=8, gres="gpu:8,lscratch:10") == 24

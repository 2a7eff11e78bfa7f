"""A lane is opened with what the site says of its container."""

import stat
from pathlib import Path

import pytest

from pike_hpc.cli.lanes import open_lane
from pike_hpc.evaluate.device import Device, torch_version
from pike_hpc.records import PikeError


@pytest.mark.skipif(torch_version() is None, reason="a lane needs an installed torch")
def test_the_image_of_the_site_reaches_an_engine_that_runs_one(tmp_path, monkeypatch):
    """An `apptainer` of our own writes down what it was asked to run."""
    said, programs = tmp_path / "said", tmp_path / "bin"
    programs.mkdir()
    program = programs / "apptainer"
    program.write_text(f'#!/bin/sh\necho "$@" >>"{said}"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    device = Device(kind="cpu", torch_device="cpu", why="")
    # Not below tmp_path, whose name alone is nearly as long as a socket's path may be.
    with open_lane(device, "apptainer", Path("/tmp"), "/images/cpu.sif") as lane:
        tried = said.read_text()
        assert "/images/cpu.sif" in tried
        with pytest.raises(PikeError, match="could not be measured"):
            _ = lane.isolation
        measured = said.read_text().removeprefix(tried).splitlines()
        assert measured
        assert all("/images/cpu.sif" in line for line in measured)

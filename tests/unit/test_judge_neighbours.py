"""What others use of the cores that a timing is made on."""

import os

import pytest

pytest.importorskip("torch")

from pike_hpc.evaluate.judge_neighbours import Neighbours, busy_s

pytestmark = pytest.mark.torch

HOUR = 3600 * os.sysconf("SC_CLK_TCK")
"""Ticks: longer than any test takes."""


@pytest.fixture
def stat(tmp_path):
    """Writes what /proc/stat would say: ticks of user, idle and steal of each core."""
    path = tmp_path / "stat"

    def say(*cores):
        lines = [f"cpu{n} {u} 0 0 {i} 0 0 0 {s} 0 0" for n, (u, i, s) in enumerate(cores)]
        path.write_text("\n".join(["cpu  9 9 9 9 9 9 9 9 9 9", *lines, "ctxt 7"]), "ascii")
        return path

    return say


def test_idle_time_is_nobodys(stat):
    path = stat((100, HOUR, 50), (100, HOUR, 0))
    assert busy_s({0}, path) == 150 / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(("where", "noisy"), [(0, True), (2, True), (1, False), (3, False)])
def test_somebody_on_the_judges_or_the_runners_core_is_noise(stat, where, noisy):
    """Pinned to its own core as the judge is meanwhile, it looks at the runners' as well."""
    before = [(0, 0, 0)] * 4
    after = [(HOUR, 0, 0) if core == where else (0, HOUR, 0) for core in range(4)]
    watching = Neighbours((), (0, 2), stat(*before))
    stat(*after)
    assert watching.noisy() == noisy


def test_time_that_a_virtual_machines_host_gives_to_others_is_noise(stat):
    watching = Neighbours((), (0, 2), stat(*[(0, 0, 0)] * 4))
    stat((0, 0, 0), (0, 0, 0), (0, 0, HOUR), (0, 0, 0))
    assert watching.noisy()


def test_what_our_own_runners_used_is_not(stat):
    class Ours:
        used_s = 0.0

        def cpu_s(self):
            return self.used_s

    ours = Ours()
    watching = Neighbours((ours,), (0,), stat((0, 0, 0)))
    stat((HOUR, 0, 0))
    ours.used_s = 3600.0
    assert not watching.noisy()


def test_without_cores_all_that_we_may_use_are_watched(stat):
    mine = max(os.sched_getaffinity(0))
    watching = Neighbours((), (), stat(*[(0, 0, 0)] * (mine + 1)))
    stat(*[(0, 0, 0)] * mine, (HOUR, 0, 0))
    assert watching.noisy()

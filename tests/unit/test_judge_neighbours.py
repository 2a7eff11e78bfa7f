"""What others use of the cores that a timing is made on."""

import os

import pytest

pytest.importorskip("torch")

from pike_hpc.evaluate.judge_neighbours import Neighbours, used_s

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


class Ours:
    """A runner, and what it and all below it used."""

    used_s = 0.0

    def cpu_s(self):
        return self.used_s


def test_idle_time_is_nobodys(stat):
    path = stat((100, HOUR, 50), (100, HOUR, 0))
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    assert used_s({0}, path) == (100 * tick_s, 50 * tick_s)


@pytest.mark.parametrize(("where", "noisy"), [(0, True), (2, True), (1, False), (3, False)])
def test_somebody_on_the_judges_or_the_runners_core_is_noise(stat, where, noisy):
    """Pinned to its own core as the judge is meanwhile, it looks at the runners' as well."""
    before = [(0, 0, 0)] * 4
    after = [(HOUR, 0, 0) if core == where else (0, HOUR, 0) for core in range(4)]
    watching = Neighbours((), (0,), (2,), stat(*before))
    stat(*after)
    assert watching.noisy() == noisy


def test_what_runners_use_elsewhere_hides_nobody(stat):
    """Their helpers are on cores that nobody watches."""
    ours = Ours()
    watching = Neighbours((ours,), (0,), (1,), stat((0, 0, 0), (0, 0, 0)))
    stat((HOUR, 0, 0), (HOUR, 0, 0))
    ours.used_s = 7200.0
    assert watching.noisy()


def test_what_a_virtual_machines_host_gives_to_others_is_noise_whatever_we_use(stat):
    """Where a kernel counts it as the program's own as well."""
    ours = Ours()
    watching = Neighbours((ours,), (0,), (2,), stat(*[(0, 0, 0)] * 4))
    stat((0, 0, 0), (0, 0, 0), (0, 0, HOUR), (0, 0, 0))
    ours.used_s = 3600.0
    assert watching.noisy()


def test_without_cores_all_that_we_may_use_are_watched(stat):
    mine = max(os.sched_getaffinity(0))
    watching = Neighbours((), stat=stat(*[(0, 0, 0)] * (mine + 1)))
    stat(*[(0, 0, 0)] * mine, (HOUR, 0, 0))
    assert watching.noisy()


def test_what_we_use_ourselves_is_none(stat):
    watching = Neighbours((), stat=stat(*[(0, 0, 0)] * 64))
    assert not watching.noisy()

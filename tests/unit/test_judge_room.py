"""Memory of a GPU goes back where others may want it; a CPU has nothing to give back."""

import pytest

pytest.importorskip("torch")

import torch

from pike_hpc.evaluate.judge_room import KEPT_BYTES, PLENTY_BYTES, free_bytes, free_on, give_back

pytestmark = pytest.mark.torch

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def card(monkeypatch):
    """A GPU as torch tells of it: how much is free, and how often its cache was emptied."""
    told = {"free": 0, "kept": 0, "emptied": 0}
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: told["kept"] + 5)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 5)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (told["free"], 1 << 40))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: told.update(emptied=told["emptied"] + 1))
    return told


@pytest.mark.parametrize(
    ("free", "asked", "emptied"),
    [
        (PLENTY_BYTES, {}, 0),
        (PLENTY_BYTES - 1, {}, 1),
        (PLENTY_BYTES, {"enough": PLENTY_BYTES + 1}, 1),
        (PLENTY_BYTES, {"enough": float("inf")}, 1),
    ],
    ids=["plenty", "less", "more is wanted", "all"],
)
def test_what_is_kept_goes_back_where_less_than_enough_is_free(card, free, asked, emptied):
    card["free"] = free
    give_back(GPU, **asked)
    assert card["emptied"] == emptied
    assert free_bytes(GPU) == free_on(GPU)() == free


def test_much_goes_back_whatever_is_free(card):
    card["free"] = PLENTY_BYTES
    for kept, emptied in ((KEPT_BYTES, 0), (KEPT_BYTES + 1, 1)):
        card["kept"] = kept
        give_back(GPU)
        assert card["emptied"] == emptied


def test_a_cpu_gives_nothing_back_and_always_has_room(card):
    give_back(CPU, enough=float("inf"))
    assert card["emptied"] == 0
    assert free_on(CPU)() >= PLENTY_BYTES

"""Any course of beats, looks and Slurm's words: who is lost is what the rule says, and how often
is asked has a bound."""

from __future__ import annotations

import dataclasses
import itertools

from hypothesis import given
from hypothesis import strategies as st

from pike_hpc.mailbox import WorkerBeat
from pike_hpc.mailbox.leases import FROZEN_STALES, SUSPECT_SHARE, Heard, Leases

STALE_S = 60.0
SUSPECT_S = SUSPECT_SHARE * STALE_S


class Board:
    def __init__(self) -> None:
        self.last: Heard | None = None

    def heard(self) -> Heard | None:
        return self.last

    def note(self, heard: Heard) -> None:
        self.last = heard


def beat(number: int, counter: int) -> WorkerBeat:
    return WorkerBeat(
        worker_id=f"w{number}",
        host="h",
        pid=1,
        start_token="t",
        counter=counter,
        job=f"{number}.0",
        state="idle",
        device_kind="cpu",
        started_at=0.0,
    )


STEP = st.tuples(
    st.floats(0.1, 40.0),
    st.lists(st.sampled_from(["beats", "silent", "seen", "gone"]), min_size=2, max_size=2),
    st.lists(st.sampled_from([True, False, None]), min_size=2, max_size=2),
    st.integers(0, 1),
)


@given(st.lists(STEP, max_size=60))
def test_the_lost_are_those_of_the_rule_and_questions_are_few(steps):
    now_s, says, asked = [0.0], {}, []

    def ask(jobs):
        asked.append(now_s[0])
        return {job: says[job] for job in jobs}

    board = Board()
    # Two observers take turns: what one hears serves the other.
    observers = [Leases(lambda: now_s[0], ask, board) for _ in range(2)]
    counters = [0, 0]
    first_seen: list[dict[int, tuple[int, float]]] = [{}, {}]
    for passed_s, lives, words, who in steps:
        now_s[0] += passed_s
        says = {f"{n}.0": word for n, word in enumerate(words)}
        for n, life in enumerate(lives):
            counters[n] += life == "beats"
            if first_seen[who].get(n, (None, 0.0))[0] != counters[n]:
                first_seen[who][n] = (counters[n], now_s[0])
        beats = {f"h{n}": beat(n, counters[n]) for n in range(2)}
        alive = {f"w{n}": {"seen": True, "gone": False}.get(life) for n, life in enumerate(lives)}
        before = len(asked)
        lost = observers[who].lost(
            beats, stale_s=STALE_S, is_alive=lambda b, alive=alive: alive[b.worker_id]
        )
        runs = dict(board.last.runs) if board.last else {}
        suspects = set()
        for n, life in enumerate(lives):
            still_s = now_s[0] - first_seen[who][n][1]
            suspect = alive[f"w{n}"] is None and still_s >= SUSPECT_S
            suspects |= {f"{n}.0"} if suspect else set()
            word = runs.get(f"{n}.0") if suspect else None
            patience_s = STALE_S * (FROZEN_STALES if word else 1)
            wanted = life == "gone" or word is False or still_s >= patience_s
            assert (f"h{n}" in lost) == wanted
        assert len(asked) == before or suspects
    assert all(later - earlier >= SUSPECT_S - 1e-6 for earlier, later in itertools.pairwise(asked))


def test_what_another_heard_is_believed_and_a_board_that_forgets_does_no_harm():
    now_s, asked = [0.0], []

    def ask(jobs):
        asked.append(set(jobs))
        return dict.fromkeys(jobs, True)

    class Forgetful(Board):
        def note(self, heard: Heard) -> None:
            """As on a full disk."""

    alone = Leases(lambda: now_s[0], ask, Forgetful())
    silent = {"h": beat(1, 1)}
    for _ in range(13):
        assert alone.lost(silent, stale_s=STALE_S, is_alive=lambda b: None) == set()
        now_s[0] += 5.0
    assert len(asked) == 4
    board = Board()
    board.note(Heard(counter=9, runs={"1.0": False}))
    other = Leases(lambda: now_s[0], ask, board)
    first = other.lost(silent, stale_s=STALE_S, is_alive=lambda b: None)
    now_s[0] += SUSPECT_S - 1
    second = other.lost(
        {"h": dataclasses.replace(silent["h"], counter=2)}, stale_s=STALE_S, is_alive=lambda b: None
    )
    assert (first, second) == (set(), set()), "it beats"
    assert len(asked) == 4

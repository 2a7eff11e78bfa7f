"""The mailbox's soak for seconds: its users are killed before steps that chance chooses."""

import signal

import pytest
from builders.benchmarks import benchmark, imported


def test_killed_all_the_time_nothing_is_lost_and_nothing_committed_twice():
    words = ["--kills", "40", "--messages", "120", "--seed", "3"]
    code, found, _ = benchmark("mailbox_kills.py", *words)
    seen = set()
    for way in found["ways"].values():
        assert (way["lost"], way["put_twice"], way["committed_twice"]) == (0, 0, 0)
        assert way["journalled"] == 120
        assert sum(way["kills"].values()) >= 40
        seen |= set(way["kills_by_step"])
        verbs = {step.partition(":")[0] for step in way["kills_by_step"]}
        assert len(verbs) >= 5, way["kills_by_step"]
        assert {"put_many", "discard"} <= verbs, way["kills_by_step"]
    # Not only before the first step of each, which is taken for each message.
    assert any(step.startswith("put_many: ") and "known" not in step for step in seen), seen
    assert any(step.startswith("discard: ") and "known" not in step for step in seen), seen
    assert code == 0


@pytest.mark.parametrize(
    ("steps", "code", "note"),
    [
        (0, -signal.SIGKILL, "put_many: write known"),
        (2, -signal.SIGKILL, "put_many: rename tmp new"),
        (None, 0, "between"),
    ],
)
def test_what_a_process_was_at_outlives_it(tmp_path, steps, code, note):
    with imported("mailbox_kills") as bench:
        shared, logs = bench.FORK.RawArray("c", bench.NOTE_BYTES), bench.Logs(tmp_path)
        bench.FileMailbox(tmp_path / "box", commit="link", shards=2)

        def put():
            doer = bench.Doer(tmp_path / "box", logs, shared, "link", steps)
            doer.put_many([bench.request(0)])

        process = bench.FORK.Process(target=put)
        process.start()
        process.join()
        assert (process.exitcode, shared.value.decode()) == (code, note)
        assert logs.lines("kills") == ([note] if steps is not None else [])

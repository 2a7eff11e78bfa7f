"""The mailbox's soak for seconds: its users are killed before steps that chance chooses."""

from builders.benchmarks import benchmark


def test_killed_all_the_time_nothing_is_lost_and_nothing_committed_twice():
    words = ["--kills", "40", "--messages", "120", "--seed", "3"]
    code, found, _ = benchmark("mailbox_kills.py", *words)
    for way in found["ways"].values():
        assert (way["lost"], way["committed_twice"]) == (0, 0)
        assert way["journalled"] == 120
        assert sum(way["kills"].values()) >= 40
        verbs = {step.partition(":")[0] for step in way["kills_by_step"]}
        assert len(verbs) >= 4, way["kills_by_step"]
        assert "discard" in verbs, way["kills_by_step"]
    assert code == 0

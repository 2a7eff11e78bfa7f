"""What a verdict costs a file server: as docs/mailbox.md says, and never above the bound."""

import re
from pathlib import Path

import pytest
from builders.counting_files import CountingFiles

from pike_hpc.mailbox import FileMailbox
from pike_hpc.records import EvalRequest, EvalResult, EvalStatus, Task

MOST = 25
ROUNDS = 5
CPU = frozenset({"cpu"})
TASK = Task(suite="s", id="1", name="one", source="x")
DOC = (Path(__file__).resolve().parents[2] / "docs" / "mailbox.md").read_text("utf-8")


def request(number):
    return EvalRequest(
        task=TASK, candidate_source=f"# {number}", device_kind="cpu", image_digest="i"
    )


def done(of):
    return EvalResult(key=of.key, status=EvalStatus.TIMEOUT)


def per_verdict(root, each, shards=1):
    """Operations by step and verdict, in a mailbox that has served before; `each` a file."""
    files = CountingFiles()
    box = FileMailbox(root, files=files, shards=shards, commit="link")
    spent = {}

    def counted(call, *words):
        before = files.count
        told = call(*words)
        step = call.__name__.removesuffix("_many")
        spent.setdefault(step, []).append((files.count - before) / each)
        return told

    def judging(claims):
        return [box.judging(claim) for claim in claims]

    for number in range(ROUNDS):
        sent = [request(each * number + i) for i in range(each)]
        ids = [one.request_id for one in sent]
        assert all(counted(box.put_many, sent))
        claims = counted(box.claim, "w", CPU, each)
        assert len(claims) == each
        assert all(counted(judging, claims))
        pairs = [(claim, done(claim.request)) for claim in claims]
        assert all(counted(box.commit_many, pairs))
        assert set(counted(box.results, ids)) == set(ids)
        counted(box.discard, ids)
    assert all(len(set(costs)) == 1 for costs in spent.values()), "a later verdict costs more"
    return {step: costs[0] for step, costs in spent.items()}


def test_a_verdict_costs_what_the_table_says_and_not_above_the_bound(tmp_path):
    table = DOC.partition("## Metadata operations per verdict")[2].partition("\n## ")[0]
    told = {step: int(count) for step, count in re.findall(r"^\| (\w+) \| (\d+) \|", table, re.M)}
    found = per_verdict(tmp_path, each=1)
    assert found == told
    assert sum(found.values()) <= MOST
    assert f"**{sum(told.values())}**" in table
    batched = sum(per_verdict(tmp_path / "batched", each=16).values())
    assert round(batched) == int(re.search(r"with 16 requests a file: about (\d+)", table)[1])


@pytest.mark.parametrize("shards", [2, 4])
def test_each_further_shard_costs_one_listing_more(tmp_path, shards):
    one, some = per_verdict(tmp_path / "one", 1), per_verdict(tmp_path / "some", 1, shards)
    assert some == one | {"claim": one["claim"] + shards - 1}

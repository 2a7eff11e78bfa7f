"""Stock settings beside a speedup: what is kept, what is found again, what counts as the best."""

from dataclasses import replace

import pytest
from builders.results import passed, timed

from pike_hpc.cli.stock import Stock, StockVerdicts, stock_entries
from pike_hpc.config import env
from pike_hpc.proposers.rules import Toolchain
from pike_hpc.records import (
    Candidate,
    Environment,
    EvalResult,
    EvalStatus,
    ResultKey,
    Tier,
)
from pike_hpc.tasks import find_task

TASK = find_task("level3-pike/4")
HERE = Environment(device="NVIDIA H200", torch="2.13.0", cpu_threads=8, driver="CUDA 13.0")


def verdict(source, speedup, *, tier=Tier.FP32, kind="nvidia-h200", status=EvalStatus.PASSED):
    key = ResultKey(
        task_digest=TASK.digest,
        candidate_id=Candidate(task_digest=TASK.digest, source=source).id,
        device_kind=kind,
        image_digest="i",
    )
    if status is not EvalStatus.PASSED:
        return EvalResult(key=key, status=status, environment=HERE)
    timing = timed(speedup, candidate_ms=6.0 / speedup, reference_ms=6.0)
    return passed(key, speedup, tier=tier, timing=timing, environment=HERE)


def stock(**verdicts):
    named = {name.replace("_", "-"): found for name, found in verdicts.items()}
    return Stock(verdicts=named, missing=(), absent={})


MINE = verdict("mine", 3.0, tier=Tier.TF32)


def test_the_best_setting_is_of_a_tier_at_most_as_loose():
    known = stock(
        eager=verdict("e", 1.02),
        compile=verdict("c", 1.5, tier=Tier.TF32),
        half=verdict("h", 4.0, tier=Tier.HALF),
    )
    assert known.best(MINE) == ("compile", 1.5)
    assert known.best(replace(MINE, tier=Tier.HALF)) == ("half", 4.0)
    assert known.best(replace(MINE, tier=Tier.FP32)) == ("eager", 1.0)


def test_what_was_not_tried_does_not_look_beaten_and_what_failed_was_tried():
    assert stock(eager=verdict("e", 1.0)).best(MINE) is None
    assert stock(strict_fp32=verdict("s", 0.9)).best(MINE) is None
    failed = verdict("c", 1.0, status=EvalStatus.RUNTIME_ERROR)
    assert stock(compile=failed).best(MINE) == ("eager", 1.0)


def test_both_denominators_are_in_ms_of_the_judging_beside_which_they_stand():
    known = stock(compile=verdict("c", 1.5), strict_fp32=verdict("s", 0.8))
    timing = known.beside(MINE).timing
    assert timing.stock_best_ms == pytest.approx(4.0)
    assert timing.strict_fp32_ms == pytest.approx(7.5)
    assert timing.speedup == 3.0
    assert known.document(MINE)["over_stock"] == pytest.approx(2.0)
    assert "2.00x over torch's best at this tier: compile 1.50x" in known.lines(MINE)[0]


def test_unknown_stays_null_and_a_cpu_has_no_tf32():
    nothing = stock()
    assert nothing.beside(MINE) == MINE
    on_cpu = verdict("mine", 3.0, kind="cpu")
    assert nothing.beside(on_cpu).timing.strict_fp32_ms == 6.0
    assert nothing.beside(on_cpu).timing.stock_best_ms is None
    assert "--stock" in nothing.lines(MINE)[0]


def test_a_program_that_failed_has_no_denominators():
    failed = verdict("mine", 1.0, status=EvalStatus.WRONG_RESULT)
    known = stock(compile=verdict("c", 1.5))
    assert known.beside(failed) == failed
    assert known.lines(failed) == []
    assert known.document(failed)["over_stock"] is None


def test_what_is_kept_is_found_again_and_nothing_else_is(tmp_path):
    kept = StockVerdicts(tmp_path / "stock")
    kept.keep(verdict("a", 2.0))
    kept.keep(verdict("b", 2.0, status=EvalStatus.TIMEOUT))
    kept.keep(verdict("c", 2.0, status=EvalStatus.JUDGE_ERROR))
    assert kept.find(TASK, "a", HERE) == verdict("a", 2.0)
    assert kept.find(TASK, "b", HERE).status is EvalStatus.TIMEOUT
    assert kept.find(TASK, "c", HERE) is None
    assert kept.find(replace(TASK, shape_overrides={"batch_size": 2}), "a", HERE) is None
    for other in ({"device": "NVIDIA B200"}, {"torch": "2.11.0"}, {"cpu_threads": 4}):
        assert kept.find(TASK, "a", replace(HERE, **other)) is None
    assert kept.find(TASK, "a", replace(HERE, host="another")) is not None
    kept.keep(verdict("a", 2.5))
    assert kept.find(TASK, "a", HERE).timing.speedup == 2.5
    assert not list((tmp_path / "stock").glob(".new-*"))


def test_a_torn_file_is_no_verdict(tmp_path):
    kept = StockVerdicts(tmp_path)
    kept.keep(verdict("a", 2.0))
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    assert kept.find(TASK, "a", HERE) is None


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path):
    (tmp_path / "file").write_text("")
    kept = StockVerdicts(tmp_path / "file" / "stock")
    kept.keep(verdict("a", 2.0))
    assert kept.find(TASK, "a", HERE) is None


def test_every_mode_is_known_missing_or_absent(tmp_path):
    bare = Toolchain(compiler=None, python_headers=False, tensorrt=False)
    kept = StockVerdicts(tmp_path, bare)
    entries = {entry.setting: entry for entry in stock_entries(TASK, "nvidia-h200", bare)}
    kept.keep(verdict(entries["half"].source, 2.0, tier=Tier.HALF))
    found = kept.look(TASK, "nvidia-h200", HERE)
    assert set(found.verdicts) == {"half"}
    missing = {entry.setting for entry in found.missing}
    assert {"eager", "strict-fp32"} <= missing
    assert {*found.verdicts, *missing, *found.absent} == set(entries)
    assert found.absent["tensorrt"]


def test_the_cache_is_the_users():
    assert str(env.user_cache_dir({"XDG_CACHE_HOME": "/c"})) == "/c/pike-hpc"
    assert str(env.user_cache_dir({"HOME": "/h"})) == "/h/.cache/pike-hpc"
    assert str(env.user_cache_dir({"HOME": "/h", "XDG_CACHE_HOME": "rel"})) == "/h/.cache/pike-hpc"

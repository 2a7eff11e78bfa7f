"""A user's mistake: one message with what, where, valid and next; the contract's exit code."""

import json
from pathlib import Path

import pytest

from pike_hpc.cli import main
from pike_hpc.cli.main import COMMANDS
from pike_hpc.tasks import find_task

ROOT = Path(__file__).resolve().parents[2]

QUICK = """
schema_version: 1
name: quick
tasks: {suite: level3-pike, ids: "4"}
search: {strategy: rules}
"""


@pytest.fixture
def workflow(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the shell's folder, not our code
    path = tmp_path / "w.yaml"
    path.write_text(QUICK)
    (tmp_path / "w.py").write_text("class ModelNew: ...\n")
    (tmp_path / "empty.yaml").touch()
    one = QUICK.replace('suite: level3-pike, ids: "4"', "path: w.py")
    (tmp_path / "one.yaml").write_text(one)
    return path


def run(capsys, *arguments):
    try:
        code = main([str(a) for a in arguments])
    except SystemExit as leaving:
        code = leaving.code
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out, said.err


def test_the_commands_are_those_of_the_contract():
    assert set(COMMANDS) == {
        *("submit", "resume", "cancel", "status", "report", "evaluate", "tasks", "agent"),
        *("baselines", "worker", "archive", "doctor", "config"),
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["submit", "--workflow", "nope.yaml"], ["nope.yaml", "No such file"]),
        (["submit", "--workflow", "w.yaml", "--site", "lokal"], ["'lokal'", "did you mean"]),
        (["submit", "--workflow", "w.yaml", "--set", "budget.wal=1"], ["wal", "wall_minutes"]),
        (["submit", "--workflow", "w.yaml", "--sit", "local"], ["unrecognized", "--sit"]),
        (["submit", "--workflow", "w.yaml", "--set", "search.seed=1:30"], ["base 60"]),
        *(
            (["submit", "--workflow", "w.yaml", "--set", f"evaluate.timeout_s={t}"], [said])
            for t, said in ((".nan", "a number"), ("0", "less than 1"), ("1.0e+300", "more than"))
        ),
        (["submit", "--workflow", "w.yaml", "--set", "evaluate.devices=[cuda]"], ["nvidia-smi"]),
        (["submit", "--workflow", "w.yaml", "--set", 'tasks.ids="99"'], ["'99'", "1, 2, 4, 6"]),
        (
            ["submit", "--workflow", "w.yaml", "--set", "tasks.shape_overrides={'99': {a: 1}}"],
            ["'99'", "level3-pike", "1, 2, 4, 6"],
        ),
        *(
            (
                ["submit", "--workflow", "w.yaml", "--set", "search.options.branchs=3", *how],
                ["branchs", "search.options"],
            )
            for how in ([], ["--dry-run"], ["--simulate"])
        ),
        (
            ["submit", "--workflow", "w.yaml", "--simulate", "--record", "tape"],
            ["--record has no meaning with --simulate"],
        ),
        *(
            (
                ["submit", "--workflow", "w.yaml", "--run", "new", option, "w.py"],
                [f"{option} w.py", "a tape is a folder"],
            )
            for option in ("--record", "--replay")
        ),
        (
            ["submit", "--workflow", "w.yaml", "--set", "wall_minutes=3"],
            ["'wall_minutes'", "did you mean 'budget.wall_minutes'?"],
        ),
        (["submit", "--workflow", "empty.yaml"], ["is empty", "workflows/quickstart.yaml"]),
        (["submit", "--workflow", "one.yaml"], ["w.py is a file", "name its folder"]),
        (["evaluate", "level3-pike/99", "w.yaml"], ["'99'", "1, 2, 4, 6"]),
        (["evaluate", "level3-pik/4", "w.yaml"], ["level3-pike"]),
        (["evaluate", "level3-pike/4", "w.py", "--image", "i"], ["would not be used", "podman"]),
        (["evaluate", "level3-pike/4", "w.py", "--engine", "docker"], ["none is named", "--image"]),
        (["tasks", "check", "level3-pike/4", "--image", "i"], ["--image i would not be used"]),
        (["baselines", "level3-pike/4", "--image", "i"], ["--image i would not be used"]),
        (
            ["submit", "--workflow", "w.yaml", "--set", "container.image=i.sif"],
            ["container.image i.sif would not be used", "--set container.image", "apptainer"],
        ),
        *(
            (
                ["evaluate", "level3-pike/4", "w.py", f"--timeout-s={t}"],
                [f"'{t}' is no time", "week"],
            )
            for t in ("nan", "inf", "-inf", "-1", "0", "1e300", "soon")
        ),
        (["baselines", "level3-pike/4", "--timeout-s", "nan"], ["'nan' is no time"]),
        (["doctor", "--wait-s", "0"], ["'0' is no time"]),
        (["doctor", "--wait-s", "1.5"], ["whole number"]),
        (["agent", "r", "--max-seconds", "nan"], ["'nan' is no time"]),
        (["agent", "r", "--max-seconds", "inf"], ["'inf' is no time"]),
        (["submit", "--workflow", "w.yaml", "--run", ""], ["empty argument", "after '--run'"]),
        (["submit", "--workflow", "w.yaml", "--run="], ["empty argument", "'--run='"]),
        (["submit", "--workflow", "w.yaml", "--set="], ["empty argument", "'--set='"]),
        (["status", ""], ["empty argument", "after 'status'"]),
        (
            ["submit", "--workflow", "w.yaml", "--run", "."],
            ["no run folder, and not empty", "w.py"],
        ),
        (
            ["submit", "--workflow", "w.yaml", "--run", ".", "--simulate"],
            ["no run folder, and not empty", "w.py"],
        ),
        (["evaluate", "level3-pike", "w.py"], ["is a suite of", "level3-pike/1,", "tasks list"]),
        (["tasks", "show", "level3-pike"], ["is a suite of", "tasks list"]),
        (["evaluate", "level3-pike/4", "nope.py"], ["nope.py", "ModelNew"]),
        (["evaluate", "level3-pike/4", "w.yaml", "--shape", "batch=0"], ["batch_size=2"]),
        (["status", "."], ["run.yaml", "submit"]),
        (["resume", "."], ["run.yaml", "submit"]),
        (["report", "nothing"], ["nothing"]),
        (["archive", "rebuild", "."], ["journal"]),
        (["archive", "rebuild", "nothing"], ["no such", "nothing"]),
        (["submit", "--workflow", "w.yaml", "--run", "w.yaml/run"], ["w.yaml", "Not a directory"]),
        (["doctor", "--collect", "no/such/folder"], ["no/such/folder"]),
        (["tasks", "show"], ["SUITE/ID"]),
        (["config", "show", "--workflow", "w.yaml", "--site", "x.yaml"], ["x.yaml"]),
        (["frobnicate"], ["frobnicate", "submit"]),
    ],
)
def test_wrong_usage_is_two_and_says_what_to_do(capsys, workflow, arguments, words):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == "", "stdout is data"
    for word in words:
        assert word in err


def test_a_setting_may_be_empty_in_one_word_as_in_two(capsys, workflow):
    show, given = ("config", "show", "--workflow", "w.yaml"), "container.image="
    one, two = run(capsys, *show, f"--set={given}"), run(capsys, *show, "--set", given)
    assert one[0] == 0
    assert one == two


def test_an_unset_key_stops_before_anything_is_made(capsys, workflow, monkeypatch):
    monkeypatch.delenv("PIKE_TEST_KEY", raising=False)
    workflow.write_text(
        QUICK.replace("rules", "default")
        + "budget: {max_usd: 1}\n"
        + "models: {optimise: {provider: openai, model: gemini-2.5-pro, key_env: PIKE_TEST_KEY}}\n"
    )
    code, _, err = run(capsys, "submit", "--workflow", workflow, "--run", "made")
    assert code == 2
    assert "PIKE_TEST_KEY is not set" in err
    assert not (workflow.parent / "made").exists()


def test_an_unreadable_archive_names_the_way_back(capsys, tmp_path):
    junk = tmp_path / "archive.h5"
    junk.write_bytes(b"not HDF5")
    code, _, err = run(capsys, "report", junk)
    assert code == 2
    assert "archive rebuild" in err


def test_a_run_of_another_version_names_it(capsys, tmp_path):
    (tmp_path / "run.yaml").write_text("run_version: 99\nworkflow: {}\n")
    code, _, err = run(capsys, "status", tmp_path)
    assert code == 2
    assert "99" in err


def test_fewer_tasks_of_the_quickstart_are_named_by_their_ids_alone(capsys, workflow):
    """Its shapes of the others stay in its file, unused."""
    site = ("--site", "local", "--dry-run")
    quickstart = ("--workflow", ROOT / "workflows/quickstart.yaml", "--set", 'tasks.ids="4,17"')
    code, out, err = run(capsys, "submit", *quickstart, *site)
    assert code == 0, err
    assert "tasks: level3-pike/4, level3-pike/17\n" in out


@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        ("{suite: level3-pik}", "did you mean 'level3-pike'?"),
        ("{suite: mine}", "`path:`"),
        ('{suite: level0, ids: "999"}', "valid: 1, 2, 3, 4, 5"),
        ('{suite: level0, ids: "1-"}', "1-"),
    ],
)
def test_tasks_that_are_not_there_are_named_with_their_line(capsys, tmp_path, tasks, says):
    file = tmp_path / "w.yaml"
    file.write_text(f"schema_version: 1\nname: none\nsearch: {{strategy: rules}}\ntasks: {tasks}\n")
    code, _, err = run(capsys, "submit", "--workflow", file, "--site", "local", "--dry-run")
    assert code == 2
    assert f"{file}:4" in err
    assert says in err


def test_two_copies_of_one_task_are_refused_by_name(capsys, tmp_path):
    source = find_task("level3-pike/4").source
    (tmp_path / "mine").mkdir()
    for name in ("04_LeNet5.py", "copy.py"):
        (tmp_path / "mine" / name).write_text(source)
    file = tmp_path / "w.yaml"
    file.write_text(
        "schema_version: 1\nname: twins\ntasks: {path: mine}\nsearch: {strategy: rules}\n"
    )
    made = ("--site", "local", "--run", tmp_path / "made")
    code, _, err = run(capsys, "submit", "--workflow", file, "--simulate", *made)
    assert code == 2
    assert "the same program: 4_LeNet5.py and copy.py" in err
    assert "tasks.ids" in err
    assert not (tmp_path / "made").exists()
    fewer = ("--set", 'tasks.ids="4"', "--dry-run")
    code, _, err = run(capsys, "submit", "--workflow", file, *fewer, *made)
    assert code == 0, err


def test_dry_run_prints_the_ceiling_and_makes_nothing(capsys, workflow):
    code, out, _ = run(capsys, "submit", "--workflow", workflow, "--dry-run", "--run", "made")
    assert code == 0
    assert "ceiling: no time limit, $0.00" in out
    assert "pike_hpc worker" in out
    assert "pike_hpc agent" in out
    assert not (workflow.parent / "made").exists()


def test_dry_run_shows_where_submit_would_stop(capsys, workflow, monkeypatch):
    """A key that is not there yet hides nothing of the plan."""
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    level3 = ("--workflow", ROOT / "workflows/level3.yaml", "--site", "local")
    code, out, _ = run(capsys, "submit", *level3, "--dry-run")
    assert code == 0
    assert "# submit would stop here:\n# no API key: GEMINI_API_KEY is not set" in out
    assert "pike_hpc agent" in out
    code, _, err = run(capsys, "submit", *level3, "--run", "made")
    assert code == 2
    assert "no API key: GEMINI_API_KEY is not set" in err
    assert not (workflow.parent / "made").exists()


def test_a_missing_compiler_is_told_before_the_run(capsys, workflow, monkeypatch):
    asked = ("submit", "--workflow", workflow, "--dry-run", "--set", "container.engine=none")
    assert "left out" not in run(capsys, *asked)[1]
    monkeypatch.setenv("PATH", str(workflow.parent))
    _, out, _ = run(capsys, *asked)
    assert (
        "# rules with torch.compile are left out, for want of a C++ compiler (Debian package g++)"
        in out
    )


def test_tasks_list_and_show_speak_the_contracts_json(capsys):
    code, out, _ = run(capsys, "tasks", "list", "level3-pike", "--json")
    listed = json.loads(out)
    assert (code, listed["schema_version"]) == (0, 1)
    row = next(t for t in listed["tasks"] if t["id"] == "4")
    assert row["task"] == "level3-pike/4"
    assert row["admitted"] is None
    code, out, _ = run(capsys, "tasks", "show", "level3-pike/4", "--json")
    assert code == 0
    assert "class Model" in json.loads(out)["source"]


def test_simulate_marks_everything(capsys, workflow):
    code, out, err = run(capsys, "submit", "--workflow", workflow, "--simulate", "--run", "sim")
    assert code in (0, 3)
    assert "SIMULATED" in out
    assert "SIMULATED" in err
    code, out, _ = run(capsys, "report", "sim", "--json")
    report = json.loads(out)
    assert [task["simulated"] for task in report["tasks"]] == [True]
    for tier in ("fp32", "tf32", "half"):
        assert set(report["geomean"][tier].values()) == {None}, "made-up verdicts make no headline"
    page = (workflow.parent / "sim" / "report.html").read_text()
    assert "SIMULATED" in page
    code, out, _ = run(capsys, "status", "sim", "--json")
    assert json.loads(out)["state"] == "done"


def test_what_a_site_would_be_asked_for_is_shown_anywhere(capsys, workflow, monkeypatch):
    monkeypatch.setenv("SCRATCH", str(workflow.parent))
    code, out, _ = run(
        capsys, "submit", "--workflow", workflow, "--site", "perlmutter", "--dry-run"
    )
    assert code == 0
    assert "#SBATCH --qos=regular" in out


def test_an_image_that_is_not_there_is_found_before_a_run_folder_is_made(capsys, workflow):
    container = ("--set", "container.engine=apptainer", "--set", "container.image=/no/such.sif")
    code, _, err = run(
        capsys, "submit", "--workflow", workflow, "--site", "local", *container, "--run", "r"
    )
    assert code == 2
    assert "no image /no/such.sif for engine apptainer: No such file" in err
    assert "where: --set container.image" in err
    assert "make image" in err
    assert not (workflow.parent / "r").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["tasks", "list", "level0/3", "--json", "--device", "cpu"],
        ["tasks", "list", "--device", "cpu", "level0/3", "--json"],
        ["tasks", "--json", "--device", "cpu", "list", "level0/3"],
    ],
)
def test_options_may_stand_anywhere(capsys, arguments):
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert [task["task"] for task in json.loads(out)["tasks"]] == ["level0/3"]


def test_several_words_may_stand_around_options(capsys, workflow):
    sets = ["--set", "search.seed=7", "--set", "budget.evaluations_per_task=3"]
    show = ["config", *sets[:2], "show", "--json", *sets[2:], "--workflow", workflow]
    code, out, _ = run(capsys, *show)
    found = json.loads(out)["workflow"]
    assert (code, found["search"]["seed"], found["budget"]["evaluations_per_task"]) == (0, 7, 3)
    code, _, err = run(capsys, "report", "one", "--json", "two")
    assert code == 2
    assert "unrecognized" not in err
    code, _, err = run(capsys, "evaluate", "level3-pike/4", "--", "-x.py")
    assert code == 2
    assert "-x.py" in err
    assert "unrecognized" not in err


SLURM_SITE = """
schema_version: 1
name: here
scheduler: slurm
paths: {work: "runs"}
account: m1
worker_job: {gpus: 1, gpu_model: nvidia-a100-sxm4-40gb, cpus: 16, walltime_minutes: 60}
agent: {where: array, cpus: 2, walltime_minutes: 60}
"""


def test_at_slurm_a_device_must_be_one_that_its_jobs_have(capsys, workflow):
    Path("here.yaml").write_text(SLURM_SITE)
    at_site = ["submit", "--workflow", workflow, "--site", "./here.yaml", "--dry-run"]
    code, out, err = run(capsys, *at_site, "--set", "evaluate.devices=[gpu]")
    assert (code, out) == (2, "")
    for word in (
        "'gpu'",
        "--set evaluate.devices=[gpu]",
        "auto, cuda, cpu, simulated, nvidia-a100-sxm4-40gb",
    ):
        assert word in err
    _, _, err = run(capsys, *at_site, "--set", "evaluate.devices=[nvidia-a100-sxm4-40gb]")
    assert "would judge on" not in err

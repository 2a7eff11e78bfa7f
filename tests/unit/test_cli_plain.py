"""On a terminal that knows ASCII alone every command says its words, if plainer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKFLOW = """
schema_version: 1
name: quick
tasks: {suite: level3-pike, ids: "4"}
search: {strategy: rules}
"""


def pike(folder: Path, *arguments: str, encoding: str = "ascii") -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-P", "-m", "pike_hpc", *arguments],
        cwd=folder,
        capture_output=True,
        check=False,
        timeout=120,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONIOENCODING": encoding},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a rehearsed run in it, made on such a terminal."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "w.yaml").write_text(WORKFLOW)
    made = pike(folder, "submit", "--workflow", "w.yaml", "--simulate", "--run", "sim")
    assert made.returncode in (0, 3), made.stderr
    return folder


@pytest.mark.parametrize(
    "command",
    ["report sim", "status sim", "tasks list", "baselines nope", "evaluate no/4 é", "--help"],
)
def test_no_command_fails_for_what_it_cannot_show(folder: Path, command: str) -> None:
    plain, rich = (pike(folder, *command.split(), encoding=e) for e in ("ascii", "utf-8"))
    assert b"Traceback" not in plain.stderr
    assert plain.returncode == rich.returncode
    assert plain.stdout.isascii()
    assert plain.stderr.isascii()


def test_an_ellipsis_is_three_dots_and_a_name_keeps_its_letters(folder: Path) -> None:
    said = pike(folder, "evaluate", "level3-pike/4", "modèle…·⟨x⟩.py").stderr.decode("ascii")
    assert "modele...-<x>.py" in said


def test_a_name_that_is_no_text_is_shown(folder: Path) -> None:
    for encoding in ("ascii", "utf-8"):
        said = pike(
            folder, "evaluate", "level3-pike/4", os.fsdecode(b"a\xffb.py"), encoding=encoding
        )
        assert said.returncode == 2
        assert b"a?b.py" in said.stderr

"""The Python that a site's module line brings, found through a login shell that greets."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "pike_hpc/bootstrap/find_python.sh"
LOGIN_SHELL = """#!/bin/sh
echo 'Welcome to the cluster.'
echo 'Maintenance on Tuesday.'
module() { PATH="$PATH:$MODULES"; }
eval "$2"
"""


@pytest.fixture
def find(tmp_path):
    programs, modules = tmp_path / "bin", tmp_path / "modules"
    programs.mkdir()
    modules.mkdir()
    for name in ("sh", "sed", "head", "tail", "cat"):
        (programs / name).symlink_to(shutil.which(name) or "/")
    (programs / "bash").write_text(LOGIN_SHELL)
    (programs / "bash").chmod(0o755)
    (tmp_path / "site_configs").mkdir()
    site = 'setup: ["module load python/3.11"]\n'
    (tmp_path / "site_configs" / "there.yaml").write_text(site)

    def run(*, has_python):
        if has_python:
            (modules / "python3").write_text(f"#!/bin/sh\nexec '{sys.executable}' \"$@\"\n")
            (modules / "python3").chmod(0o755)
        return subprocess.run(
            ["sh", str(SCRIPT), "there"],
            cwd=tmp_path,
            env={"PATH": str(programs), "MODULES": str(modules), "HOME": os.devnull},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def test_what_a_login_shell_prints_first_is_no_part_of_the_path(find, tmp_path):
    assert find(has_python=True).stdout == f"{tmp_path / 'modules' / 'python3'}\n"


def test_a_greeting_alone_is_no_python(find):
    done = find(has_python=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "then 'module load python/3.11'" in done.stderr

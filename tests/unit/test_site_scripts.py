"""What would be submitted at each shipped site, line by line."""

import shutil
import subprocess

import pytest
from builders.site_scripts import GOLDEN, file_of, names, render


@pytest.mark.parametrize("name", names())
def test_the_scripts_of_a_site_are_the_golden_ones(name: str) -> None:
    """`PYTHONPATH=tests:. python -m builders.site_scripts` writes them anew."""
    assert render(name) == file_of(name).read_text("utf-8")


def test_no_golden_script_is_of_a_site_that_is_gone() -> None:
    assert {file.name for file in GOLDEN.iterdir()} == {file_of(name).name for name in names()}


@pytest.mark.parametrize("name", names())
def test_a_shell_reads_them(name: str) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    subprocess.run([bash, "-n", str(file_of(name))], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        # GPU time and CPU time have accounts of their own, cards are told apart by constraint.
        ("perlmutter", ["--account=m1234_g", "--account=m1234", "--constraint='gpu&hbm40g'"]),
        ("perlmutter:hbm80g", ["--constraint='gpu&hbm80g'", "--gpus-per-node=4"]),
        # Cards by gres alone, as many CPUs for each as the site demands.
        ("lawrencium", ["--gres=gpu:A40:1", "--cpus-per-task=16", "--partition=es1"]),
        ("lawrencium:h200", ["--gres=gpu:H200:1", "--cpus-per-task=14", "--mem-per-cpu=18400M"]),
        ("lawrencium:h100", ["--gres=gpu:H100:1", "--qos=es2_normal", "--partition=es2"]),
        # So many agents of an array at a time as the site says; all of them where it says nothing.
        ("devcluster", ["--array=0-1%2"]),
        ("devcluster:in_turn", ["--array=0-1%1"]),
        ("lawrencium:v100", ["--gres=gpu:V100:1", "--cpus-per-task=4", "--qos=es_normal"]),
    ],
)
def test_what_a_site_demands_is_asked_for(name: str, lines: list[str]) -> None:
    written = file_of(name).read_text("utf-8").splitlines()
    assert [line for line in lines if f"#SBATCH {line}" not in written] == []
    if name.startswith("lawrencium"):
        assert not [line for line in written if "--gpus" in line]
    if name.startswith("perlmutter"):
        assert not [line for line in written if "--partition" in line]

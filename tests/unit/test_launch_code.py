"""A run carries its code: packed once, importable, the same bytes for the same code."""

import hashlib
import subprocess
import sys
import zipfile

from pike_hpc.launch import pack_code
from pike_hpc.launch.code import write_wheel


def _package(folder, text):
    package = folder / "pike_hpc"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(text)
    (package / "prompt.md").write_text("as data")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "x.pyc").write_bytes(b"0")
    return package


def test_jobs_import_the_code_of_their_run_not_the_edited_one(tmp_path):
    package = _package(tmp_path / "src", "answer = 1\n")
    run = tmp_path / "a run"
    lib = pack_code(run, package)
    (package / "__init__.py").write_text("answer = 2\n")
    assert pack_code(run, package) == lib
    command = [sys.executable, "-P", "-c", "import pike_hpc; print(pike_hpc.answer)"]
    out = subprocess.run(
        command, env={"PYTHONPATH": str(lib)}, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "1"


def test_the_wheel_is_one_that_pip_would_accept(tmp_path):
    package = _package(tmp_path / "src", "")
    wheel = write_wheel(package, tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        record = archive.read(next(n for n in names if n.endswith("RECORD"))).decode()
    listed = {line.split(",")[0] for line in record.splitlines()}
    assert listed == set(names)
    assert "pike_hpc/prompt.md" in names
    assert not [n for n in names if "__pycache__" in n]


def test_the_same_code_gives_the_same_bytes(tmp_path):
    digests = set()
    for name in ("one", "two"):
        package = _package(tmp_path / name, "answer = 1\n")
        digests.add(hashlib.sha256(write_wheel(package, tmp_path / name).read_bytes()).hexdigest())
    assert len(digests) == 1


def test_a_half_unpacked_folder_is_not_taken_for_the_code(tmp_path):
    package = _package(tmp_path / "src", "answer = 1\n")
    run = tmp_path / "run"
    leftover = run / "code" / "lib.new" / "pike_hpc"
    leftover.mkdir(parents=True)
    (leftover / "old.py").write_text("stale\n")
    lib = pack_code(run, package)
    assert not (lib / "pike_hpc" / "old.py").exists()

"""Where a run is made: a new folder, an empty one, its own; never among other files."""

import pytest

from pike_hpc.cli.place import check_place
from pike_hpc.records import UsageError


@pytest.mark.parametrize(
    ("names", "fits"),
    [
        ((), True),
        (("code/", "logs/", "slurm/", "run.yaml.new"), True),
        (("run.yaml", "anything.h5"), True),
        ((".nfs0001", ".DS_Store"), True),
        (("notes.txt",), False),
        (("code/", "src/"), False),
    ],
)
def test_a_folder_with_other_peoples_files_is_refused(tmp_path, names, fits):
    for name in names:
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).touch()
    if fits:
        check_place(tmp_path)
        return
    with pytest.raises(UsageError, match="no run folder, and not empty") as error:
        check_place(tmp_path)
    assert names[-1].strip("/") in str(error.value)


def test_a_folder_that_is_not_there_is_fine(tmp_path):
    check_place(tmp_path / "new" / "run")


def test_only_a_few_names_are_told(tmp_path):
    for number in range(9):
        (tmp_path / f"f{number}").touch()
    with pytest.raises(UsageError, match="f0, f1, f2 and 6 more"):
        check_place(tmp_path)

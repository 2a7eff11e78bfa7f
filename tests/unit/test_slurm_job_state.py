"""What squeue and sacct print, understood. The texts are those of Slurm 22.05, as recorded."""

import pytest

from pike_hpc.slurm import GONE, UNKNOWN, job_states

QUEUE = """\
6|CANCELLED|None
4_0|COMPLETED|None
4_1|COMPLETED|None
3|FAILED|NonZeroExitCode
1_[2-6%2]|PENDING|JobArrayTaskLimit
7_[0-130:2]|PENDING|JobHeldUser
5|PENDING|JobHeldUser
2_[0-2,4-6,8-9]|PENDING|JobHeldUser
1_0|RUNNING|None
1_1|RUNNING|None
"""

ACCOUNTS = """\
3|FAILED
5|PENDING
6|CANCELLED by 20000
1_0|RUNNING
1_1|RUNNING
1_[2-6%2]|PENDING
2_[0-2,4-6,8-9]|PENDING
4_0|COMPLETED
4_1|COMPLETED
7_[0-130:2]|PENDING
"""

REQUEUED = """\
1_[0,3-6]|PENDING|JobArrayTaskLimit,JobHeldUser
1_2|RUNNING|None
1_1|RUNNING|None
"""

CANCELLED = """\
1_[3-6%2]|CANCELLED|JobArrayTaskLimit
1_0|CANCELLED|job requeued in held state
1_2|COMPLETING|None
1_1|COMPLETING|None
"""


def state(job, squeue, sacct=None):
    return job_states([job], squeue, sacct)[job]


@pytest.mark.parametrize(
    ("text", "job", "said", "alive"),
    [
        (QUEUE, "1_0", "RUNNING", True),
        (QUEUE, "1_2", "PENDING (JobArrayTaskLimit)", True),
        (QUEUE, "1_6", "PENDING (JobArrayTaskLimit)", True),
        (QUEUE, "2_4", "PENDING (JobHeldUser)", True),
        (QUEUE, "3", "FAILED (NonZeroExitCode)", False),
        (QUEUE, "4_1", "COMPLETED", False),
        (QUEUE, "5", "PENDING (JobHeldUser)", True),
        (QUEUE, "6", "CANCELLED", False),
        (QUEUE, "7_130", "PENDING (JobHeldUser)", True),
        (QUEUE, "7_131", f"{GONE} (Slurm no longer knows it)", False),
        (QUEUE, "7_3", f"{GONE} (Slurm no longer knows it)", False),
        (REQUEUED, "1_0", "PENDING (JobArrayTaskLimit,JobHeldUser)", True),
        (CANCELLED, "1_5", "CANCELLED (JobArrayTaskLimit)", False),
        (CANCELLED, "1_1", "COMPLETING", True),
    ],
)
def test_what_squeue_prints(text, job, said, alive):
    found = state(job, text)
    assert (str(found), found.alive) == (said, alive)


@pytest.mark.parametrize(
    ("job", "word", "alive"),
    [("1_1", "RUNNING", True), ("1_4", "PENDING", True), ("6", "CANCELLED", False)],
)
def test_what_sacct_prints_counts_where_squeue_is_silent(job, word, alive):
    found = state(job, None, ACCOUNTS)
    assert (found.word, found.alive) == (word, alive)


def test_a_task_cancelled_as_it_waited_is_gone_though_its_array_lives():
    assert state("2_3", QUEUE, ACCOUNTS).word == GONE
    assert state("2_3", QUEUE, ACCOUNTS).alive is False


def test_sacct_tells_how_those_ended_that_squeue_forgot():
    assert state("4_0", "", ACCOUNTS).word == "COMPLETED"
    assert state("4_0", "", None).word == GONE


def test_squeue_is_believed_where_sacct_is_behind():
    assert state("1_0", "1_0|COMPLETED|None\n", ACCOUNTS).alive is False
    assert state("1_0", "", ACCOUNTS).alive is False


@pytest.mark.parametrize("word", ["PREEMPTED", "NODE_FAIL", "BOOT_FAIL"])
def test_the_accounts_alone_do_not_prove_the_end_of_what_may_be_queued_again(word):
    assert state("9", None, f"9|{word}\n").alive is None
    assert state("9", "", f"9|{word}\n").alive is False
    assert state("9", f"9|{word}|None\n").alive is False


@pytest.mark.parametrize(("squeue", "sacct"), [(None, None), (None, "")])
def test_nobody_answered(squeue, sacct):
    found = state("1_0", squeue, sacct)
    assert (found.word, found.alive) == (UNKNOWN, None)


@pytest.mark.parametrize("word", ["REQUEUE_HOLD", "SUSPENDED", "SPECIAL_EXIT", "A_NEW_WORD"])
def test_a_word_that_is_none_of_an_end_counts_as_living(word):
    assert state("9", f"9|{word}|None\n").alive


@pytest.mark.parametrize("tasks", ["_[0,2,4,...]", "", "_[0,2,4...%8]"])
def test_a_list_that_is_cut_off_names_every_task_that_no_other_line_names(tasks):
    text = f"9_6|COMPLETED|None\n9{tasks}|PENDING|Priority\n"
    assert state("9_8", text).word == "PENDING"
    assert state("9_6", text).word == "COMPLETED"
    assert job_states(["9_6"], "".join(reversed(text.splitlines(True))), None)["9_6"].alive is False

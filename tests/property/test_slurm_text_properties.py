"""Any text is survived, and a list of tasks says the same as its tasks one by one."""

from hypothesis import given
from hypothesis import strategies as st

from pike_hpc.slurm import job_states

WORDS = st.sampled_from(["PENDING", "RUNNING", "COMPLETING", "COMPLETED", "FAILED", "NODE_FAIL"])
IDS = st.from_regex(r"[1-9][0-9]{0,3}(_[0-9]{1,3})?", fullmatch=True)
JUNK = st.text(st.sampled_from("0123456789_[]-,%:|.+ABC \n"), max_size=60) | st.text(max_size=40)
SPANS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(1, 4)), min_size=1, max_size=5
)


@given(st.lists(IDS | JUNK, max_size=5), JUNK | st.none(), JUNK | st.none())
def test_any_text_gives_a_state_for_each_job(jobs, squeue, sacct):
    found = job_states(jobs, squeue, sacct)
    assert set(found) == set(jobs)
    if squeue is not None:
        assert all(state.alive is not None for state in found.values())


@given(SPANS, WORDS, st.integers(0, 99), st.booleans())
def test_a_list_of_tasks_names_those_and_no_others(spans, word, asked, throttled):
    named = {n for low, more, step in spans for n in range(low, low + more + 1, step)}
    written = ",".join(f"{low}-{low + more}:{step}" for low, more, step in spans)
    text = f"12_[{written}{'%4' if throttled else ''}]|{word}|None\n"
    one_by_one = "".join(f"12_{n}|{word}|None\n" for n in sorted(named))
    job = f"12_{asked}"
    assert job_states([job], text, None) == job_states([job], one_by_one, None)
    assert (job_states([job], text, None)[job].word == word) == (asked in named)


@given(st.lists(st.tuples(IDS, WORDS), max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_lines_changes_nothing_about_who_lives(rows, random):
    jobs = [job for job, _ in rows]
    lines = [f"{job}|{word}|None\n" for job, word in rows]
    before = job_states(jobs, "".join(lines), None)
    random.shuffle(lines)
    after = job_states(jobs, "".join(lines), None)
    assert {j: s.alive for j, s in before.items()} == {j: s.alive for j, s in after.items()}

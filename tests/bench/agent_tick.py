"""What one look of an agent costs on a run that is large already: CPU time and memory.

    python tests/bench/agent_tick.py [--evaluations N] [--tasks N] [--out DIR]

A search of PIKE-B with so many made-up verdicts is played by the real controllers: five events an
evaluation, programs and answers of real size. Then `pike-hpc agent RUN --once` runs as a process of
its own, for all tasks and for the ten that one agent has at a site (agent.tasks_per_job): where
nothing has happened since, where a few verdicts have come, and where one has for all that was asked
for. CPU seconds (user and system, the start of Python included) and the highest resident memory are
what the kernel says of that process. As in the folder of code that a run carries, the first look
leaves compiled modules, and those that are measured read them. Exit status 1 where a look at
nothing or at a few verdicts costs more than wanted; what each further verdict costs is `ms_each`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import endless
import stamp

from pike_hpc.agent import AgentOptions, Models, Seat, run_agent
from pike_hpc.cli.run import writer_id
from pike_hpc.cli.setup import make_controller
from pike_hpc.mailbox import MemoryMailbox
from pike_hpc.records import Role
from pike_hpc.worker import SimulatedJudge

MODULES = (
    "agent/agent.py",
    "agent/controller.py",
    "agent/decisions.py",
    "agent/memory.py",
    "agent/queries.py",
    "agent/shelf.py",
    "cli/agent.py",
    "cli/sitting.py",
    "journal/history.py",
    "journal/line.py",
    "journal/segment.py",
    "journal/snapshot.py",
    "journal/task_journal.py",
    "llm/openai_model.py",
    "proposers/agents/answer.py",
    "proposers/agents/fence.py",
    "proposers/agents/prompt.py",
    "records/codec.py",
    "records/columns.py",
    "search/elites.py",
    "search/history.py",
    "search/phase.py",
    "search/pike_b.py",
    "search/ranking.py",
    "search/snapshot.py",
    "search/view.py",
)
FIGURES = {
    "": "tasks evaluations events journal_mb wanted ten_tasks all_tasks good_enough",
    "wanted": "cpu_s memory_mb",
    "ten_tasks|all_tasks": "nothing_new few_came all_came",
    "ten_tasks.*|all_tasks.*": "verdicts_read cpu_s memory_mb wall_s ms_each?",
}
MOST_CPU_S = 2.0
MOST_MB = 200.0
FEW = 10
"""Verdicts that come between two looks, a second or two apart, where 64 workers take 10 s each."""


def main():
    """Write the run, look in, print what it cost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--evaluations", type=int, default=10_000, metavar="N")
    parser.add_argument("--tasks", type=int, default=25, metavar="N", help="at most 30")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: stdout")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="of the run; reused if there")
    options = parser.parse_args()
    document = stamp.stamp("agent_tick", MODULES)
    with tempfile.TemporaryDirectory() as scratch, endless.served() as url:
        folder = options.keep or Path(scratch)
        if not (folder / "run").exists():
            folder.mkdir(exist_ok=True)
            run = endless.make_run(
                folder, name="agent-tick", url=url, tasks=options.tasks, workers=64
            )
            play(run, options.evaluations)
        else:
            run = endless.reopen(folder, url)
        journal = list((run.dir / "journal").glob("*.jsonl"))
        document |= {
            "tasks": options.tasks,
            "evaluations": sum(len(view.results) for view in run.views().values()),
            "events": sum(path.read_bytes().count(b"\n") for path in journal),
            "journal_mb": round(sum(path.stat().st_size for path in journal) / 1e6, 1),
            "wanted": {"cpu_s": MOST_CPU_S, "memory_mb": MOST_MB},
        }
        for name, tasks in (("ten_tasks", run.tasks[:10]), ("all_tasks", run.tasks)):
            look(run, run.tasks)  # at what has come so far, so that nothing is new to any task
            nothing = look(run, tasks)
            few = look(run, tasks, judged=judge(run, tasks, FEW))
            all_ = look(run, tasks, judged=judge(run, tasks))
            more = all_["verdicts_read"] - few["verdicts_read"]
            all_["ms_each"] = round((all_["cpu_s"] - few["cpu_s"]) * 1e3 / more, 1)
            document[name] = {"nothing_new": nothing, "few_came": few, "all_came": all_}
    document["good_enough"] = all(
        document[tasks][come]["cpu_s"] < MOST_CPU_S and document[tasks][come]["memory_mb"] < MOST_MB
        for tasks in ("ten_tasks", "all_tasks")
        for come in ("nothing_new", "few_came")
    )
    stamp.write(document, options.out)
    stamp.check(document, FIGURES)
    return 0 if document["good_enough"] else 1


def play(run, evaluations):
    """The run's past: all tasks at the same time until so many verdicts are journalled."""
    seat = Seat(model=endless.Endless(), temperature=0.8, max_output_tokens=4000)
    models = Models({role: seat for role in Role}, run.resolved.workflow.evaluate.tiers)
    mailbox, judge = MemoryMailbox(), SimulatedJudge(endless.DEVICE, seed=1)
    writer = f"agent-{writer_id()}"
    controllers = [make_controller(run, task, writer, models, mailbox) for task in run.tasks]

    def judge_what_waits(_):
        for claim in mailbox.claim(writer, frozenset([endless.DEVICE]), limit=1000):
            mailbox.judging(claim)
            mailbox.commit(claim, judge.evaluate(claim.request, lambda _: None))
        time.sleep(0.001)  # the threads that ask

    run_agent(
        controllers,
        AgentOptions(in_flight=1000),
        clock=time.monotonic,
        sleep=judge_what_waits,
        stopping=lambda: sum(len(c.view.results) for c in controllers) >= evaluations,
    )
    for controller in controllers:
        controller.close()
    models.close()


def judge(run, tasks, most=None):
    """Verdicts for what waits of these tasks, for so many at most; how many."""
    mailbox, simulated = run.mailbox, SimulatedJudge(endless.DEVICE, seed=1)
    digests, judged = {task.digest for task in tasks}, 0
    for claim in mailbox.claim("w", frozenset([endless.DEVICE]), limit=10_000):
        if claim.request.task.digest in digests and judged != most:
            mailbox.judging(claim)
            mailbox.commit(claim, simulated.evaluate(claim.request, lambda _: None))
            judged += 1
        else:
            mailbox.release(claim)
    return judged


LOOK = """
import json, re, resource, sys
from pike_hpc.cli.main import main
code = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
highest = re.search("VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())
print(json.dumps([code, used.ru_utime + used.ru_stime, int(highest[1]) / 1024]))
"""
"""Its memory by /proc: what the kernel tells of a child begins with the memory of its parent."""


def look(run, tasks, judged=0):
    """What one `pike-hpc agent RUN --once` used."""
    began = time.monotonic()
    ids = ",".join(task.id for task in tasks)
    done = subprocess.run(
        [sys.executable, "-c", LOOK, "agent", str(run.dir), "--tasks", ids, "--once"],
        env={k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    code, cpu_s, memory_mb = json.loads(done.stdout)
    if code:
        raise SystemExit(f"the agent left with {code}")
    return {
        "verdicts_read": judged,
        "cpu_s": round(cpu_s, 2),
        "memory_mb": round(memory_mb, 1),
        "wall_s": round(time.monotonic() - began, 2),
    }


if __name__ == "__main__":
    sys.exit(main())

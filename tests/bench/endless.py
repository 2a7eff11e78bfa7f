"""A run that never ends by itself: a model that always has another program, and made-up verdicts.

The model is a server on this machine that speaks OpenAI's chat completions, so an agent meets it as
it would meet any other. Its programs are of real size and no two are the same.
"""

import contextlib
import dataclasses
import http.server
import itertools
import json
import re
import threading
import time
from pathlib import Path

from pike_hpc.cli.run import Run, tasks_of
from pike_hpc.config import env, resolve
from pike_hpc.llm import Completion
from pike_hpc.records import Usage
from pike_hpc.tasks import load_suite

DEVICE = "simulated"
IDEAS = "\n".join(f"- Idea {number}: fuse what follows layer {number}." for number in range(10))
PROGRAM = """Here is a faster version that keeps the weights.

```python
import torch
from torch import nn


class ModelNew(nn.Module):
    '''Number {number}.'''

    def __init__(self, *sizes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))

    def forward(self, x):
{body}
        return x
```
"""
BODY = "\n".join(
    f"        x = torch.relu(self.layers[{n % 8}](x)) + {n}  # step {n} of the forward pass"
    for n in range(60)
)
"""A published solution of PIKE's has 2 to 8 KB; with this one a program has 4.7 KB."""

WORKFLOW = """
schema_version: 1
name: {name}
tasks: {{suite: level3-pike, ids: "{ids}"}}
search: {{strategy: pike_b}}
budget: {{queries_per_task: 5000, evaluations_per_task: 5000, max_usd: 0, wall_minutes: 0}}
models:
  optimise: {{provider: openai, model: endless, base_url: "{url}", key_env: null}}
workers: {{count: {workers}}}
"""


class Endless:
    """The same model without a server, for those who write a run's past."""

    name = "endless"

    def __init__(self):
        self._numbers = itertools.count()

    def max_cost_usd(self, request):
        del request
        return 0.0

    def complete(self, request):
        text = self.answer(request.user)
        usage = Usage(model=self.name, input_tokens=len(request.user) // 4, output_tokens=1200)
        return Completion(text=text, finish_reason="stop", usage=usage)

    def answer(self, prompt):
        if "class ModelNew" not in prompt and "ideas" in prompt[-2000:]:
            return IDEAS
        return PROGRAM.format(number=f"{next(self._numbers)}-{time.time_ns()}", body=BODY)


class Server(http.server.ThreadingHTTPServer):
    """Has room for all who knock at once: an agent asks for every task at the same time."""

    request_queue_size = 512


@contextlib.contextmanager
def served(latency_s=0.0):
    """The address of the model's server."""
    model = Endless()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            time.sleep(latency_s)
            prompt = asked["messages"][-1]["content"]
            said = {"role": "assistant", "content": model.answer(prompt)}
            usage = {"prompt_tokens": 100, "completion_tokens": 1200, "total_tokens": 1300}
            choice = {"index": 0, "message": said, "finish_reason": "stop"}
            whole = {"id": "1", "object": "chat.completion", "created": 0, "model": "endless"}
            body = json.dumps({**whole, "choices": [choice], "usage": usage}).encode()
            self.send_response_only(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


def make_run(folder: Path, *, name, url, tasks, workers):
    """A run folder of so many tasks that has not begun."""
    file = folder / "workflow.yaml"
    ids = ",".join(_ids()[:tasks])
    file.write_text(WORKFLOW.format(name=name, ids=ids, url=url, workers=workers), "utf-8")
    resolved = resolve(file, "local", environ={"HOME": str(folder)}, sites_dir=env.sites_dir({}))
    evaluate = dataclasses.replace(resolved.workflow.evaluate, devices=(DEVICE,))
    workflow = dataclasses.replace(resolved.workflow, evaluate=evaluate)
    resolved = dataclasses.replace(resolved, workflow=workflow)
    return Run.create(folder / "run", resolved, tasks_of(resolved)[0])


def _ids():

    return [task.id for task in load_suite("level3-pike").tasks]


def reopen(folder: Path, url):
    """A run made before, whose model has another address now."""
    path = folder / "run" / "run.yaml"
    path.write_text(re.sub(r"http://127\.0\.0\.1:\d+/v1", url, path.read_text("utf-8")), "utf-8")
    return Run.open(folder / "run")

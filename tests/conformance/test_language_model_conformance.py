"""One suite over every LanguageModel: a server's, a script's, a cassette's, a recording one's."""

import concurrent.futures
import http.server
import json
import threading

import pytest

from pike_hpc.llm import (
    CassetteModel,
    ModelRequest,
    RecordingModel,
    Script,
    ScriptedAnswer,
    ScriptedModel,
    make_model,
)
from pike_hpc.llm.openai_model import OpenAIModel
from pike_hpc.records import Role, Usage

TEXTS = {Role.BRAINSTORM: "- fuse\n- fold", Role.OPTIMISE: "```python\nx = 1\n```", Role.FIX: ""}
REASONS = {Role.BRAINSTORM: "stop", Role.OPTIMISE: "length", Role.FIX: "stop"}


def request(role, *, sample=0, key="task/ideas"):
    return ModelRequest(
        role=role,
        system="s",
        user=role.value,
        temperature=0.5,
        max_output_tokens=10,
        sample=sample,
        request_key=key,
    )


def requests():
    return [
        request(role, sample=sample, key=f"t/{key}")
        for role in Role
        for sample in (0, 1)
        for key in ("p0/b0/r0", "p0/b1/r0")
    ]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        role = Role(body["messages"][1]["content"])
        choice = {"message": {"content": TEXTS[role]}, "finish_reason": REASONS[role]}
        usage = {"prompt_tokens": 3, "completion_tokens": 4}
        data = json.dumps({"choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


def scripted():
    answers = tuple(
        ScriptedAnswer(role=role, text=TEXTS[role], finish_reason=REASONS[role]) for role in Role
    )
    return ScriptedModel(Script(schema_version=1, answers=answers), name="conformance")


@pytest.fixture
def served():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    model = OpenAIModel("m", key=None, base_url=f"http://127.0.0.1:{server.server_address[1]}/v1")
    yield model
    model.close()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(params=["openai", "scripted", "recording", "cassette"])
def model(request, tmp_path):
    if request.param == "openai":
        return request.getfixturevalue("served")
    if request.param == "scripted":
        return scripted()
    tape = tmp_path / "tapes" / "a.jsonl"
    recording = RecordingModel(scripted(), tape)
    if request.param == "recording":
        return recording
    for each in requests():
        recording.complete(each)
    return CassetteModel(tape)


@pytest.mark.parametrize("role", list(Role))
def test_the_answer_comes_with_its_reason_and_usage(model, role):
    completion = model.complete(request(role, key="t/p0/b0/r0"))
    assert completion.text == TEXTS[role]
    assert completion.finish_reason == REASONS[role]
    assert isinstance(completion.usage, Usage)
    assert completion.usage.input_tokens > 0
    assert completion.usage.cost_usd == 0
    assert completion.latency_s >= 0


def test_it_has_a_name_that_the_usage_carries(model):
    completion = model.complete(request(Role.FIX, key="t/p0/b0/r0"))
    assert model.name
    assert completion.usage.model == model.name


def test_a_ceiling_is_known_before_anything_is_sent(model):
    assert model.max_cost_usd(request(Role.OPTIMISE)) == 0.0


def test_many_threads_may_ask(model):
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(model.complete, requests() * 3))
    assert [a.text for a in answers] == [TEXTS[r.role] for r in requests() * 3]


def test_make_model_makes_them_all(tmp_path):
    tape = tmp_path / "t.jsonl"
    made = make_model(provider="scripted", model="default", record=tape)
    text = made.complete(request(Role.BRAINSTORM)).text
    replayed = make_model(provider="cassette", model=str(tape))
    assert replayed.complete(request(Role.BRAINSTORM)).text == text
    assert replayed.name == made.name == "scripted:default"
    assert make_model(provider="openai", model="x", base_url="http://127.0.0.1:1/v1").name == "x"

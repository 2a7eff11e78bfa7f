"""OpenAIModel against a real HTTP server on this machine, through the real openai client."""

import http.server
import json
import random
import threading
import time

import pytest

from pike_hpc.llm import ModelRefused, ModelRequest, ModelUnavailable, price_of
from pike_hpc.llm.openai_model import OpenAIModel
from pike_hpc.llm.retry import RetryPolicy, Waits
from pike_hpc.records import Role

KEY = "sk-very-secret-0123456789"
REQUEST = ModelRequest(
    role=Role.OPTIMISE, system="be fast", user="Grüße 😀", temperature=0.8, max_output_tokens=100
)


def answer(text="hello", finish_reason="stop", **usage):
    body = {
        "id": "chatcmpl-7",
        "object": "chat.completion",
        "created": 1,
        "model": "m-2026",
        "choices": [
            {
                "index": 0,
                "finish_reason": finish_reason,
                "message": {"role": "assistant", "content": text},
            }
        ],
        "usage": usage or {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050},
    }
    return 200, {"x-request-id": "req-1"}, json.dumps(body).encode()


def gemini(status, message):
    """An error as Gemini's endpoint sends it: in a list, the delay in the body alone."""
    delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "25s"}
    error = {"code": status, "message": message, "status": "RESOURCE_EXHAUSTED", "details": [delay]}
    return status, {}, json.dumps([{"error": error}]).encode()


def failure(status, message="no", *, code=None, headers=None):
    body = json.dumps({"error": {"message": message, "code": code, "type": "t"}}).encode()
    return status, headers or {}, body


HANG = "hang"
DROP = "drop"


class Server(http.server.ThreadingHTTPServer):
    """Gives its replies in order, the last one for ever; keeps what it was sent."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies, self.seen, self.released = [], [], threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request, client_address):
        """A client that gave up is no incident."""


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        server = self.server
        server.seen.append((self.path, dict(self.headers), json.loads(body)))
        reply = server.replies.pop(0) if len(server.replies) > 1 else server.replies[0]
        if reply == HANG:
            server.released.wait(30)
            return
        if reply == DROP:
            self.connection.close()
            return
        status, headers, body = reply
        self.send_response_only(status)
        length = headers.pop("content-length", str(len(body)))
        for name, value in {"content-type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("content-length", length)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def ask(server):
    """Asks a model whose server gives these replies. Waits are noted instead of waited."""
    models = []

    def ask(*replies, timeout_s=10.0, price=None, name="m", request=REQUEST):
        server.replies[:] = replies
        model = OpenAIModel(
            name,
            key=KEY,
            base_url=server.url,
            price=price,
            timeout_s=timeout_s,
            sleep=ask.waits.append,
            clock=lambda: time.monotonic() + sum(ask.waits),
            rng=random.Random(0),
        )
        models.append(model)
        return model.complete(request)

    ask.waits = []
    yield ask
    for model in models:
        model.close()


def test_a_good_answer_with_what_it_used(ask, server):
    price = price_of("gemini-2.5-pro", own_server=False)
    completion = ask(answer("hello", prompt_tokens=1000, completion_tokens=50, total_tokens=1090,
                            prompt_tokens_details={"cached_tokens": 400},
                            completion_tokens_details={"reasoning_tokens": 40}),
                     name="gemini-2.5-pro", price=price)  # fmt: skip
    assert (completion.text, completion.finish_reason) == ("hello", "stop")
    assert completion.provider_request_id == "req-1"
    assert completion.latency_s > 0
    usage = completion.usage
    assert (usage.input_tokens, usage.cached_tokens) == (1000, 400)
    assert (usage.output_tokens, usage.reasoning_tokens) == (90, 40)
    assert usage.priced
    assert usage.cost_usd == pytest.approx((1000 * 1.25 + 90 * 10) / 1e6)
    path, headers, body = server.seen[0]
    assert path == "/v1/chat/completions"
    assert {k.lower(): v for k, v in headers.items()}["authorization"] == f"Bearer {KEY}"
    assert body == {
        "model": "gemini-2.5-pro",
        "messages": [
            {"role": "system", "content": "be fast"},
            {"role": "user", "content": "Grüße 😀"},
        ],
        "temperature": 0.8,
        "max_tokens": 100,
    }


@pytest.mark.parametrize("text", ["", None, []])
def test_an_empty_answer_is_an_answer(ask, text):
    assert ask(answer(text, "length")).text == ""


def test_content_in_parts_and_an_unpriced_server(ask):
    completion = ask(answer([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, 7]))
    assert completion.text == "ab"
    assert not completion.usage.priced
    assert completion.usage.cost_usd == 0


@pytest.mark.parametrize(
    ("status", "hint"),
    [(400, "max_output_tokens"), (401, "key_env"), (403, "may use"), (404, "base_url"), (418, "")],
)
def test_a_refusal_is_not_repeated(ask, server, status, hint):
    with pytest.raises(ModelRefused) as error:
        ask(failure(status, f"Incorrect key {KEY}\x1b[31m\nsee docs", code="bad"))
    message = str(error.value)
    assert f"HTTP {status}: bad: Incorrect key [key]?[31m see docs" in message
    assert server.url in message
    assert hint in message
    assert KEY not in message
    assert len(server.seen) == 1
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    "trouble",
    [
        failure(500, "oops"),
        failure(529, "overloaded"),
        failure(408),
        (200, {}, b"\x00\xff garbage"),
        (200, {"content-type": "text/html"}, b"<html>gateway</html>"),
        (200, {}, b"[]"),
        (200, {}, b'{"choices": []}'),
        (200, {}, b'{"choices": [{"mess'),
        (200, {"content-length": "5000"}, b'{"choices": [{"message": '),
        (502, {"content-type": "text/html"}, b"<html>bad gateway</html>"),
        DROP,
    ],
)
def test_trouble_passes_or_ends_in_try_again_later(ask, server, trouble):
    first = trouble if isinstance(trouble, str) else (trouble[0], dict(trouble[1]), trouble[2])
    assert ask(first, answer("at last")).text == "at last"
    assert len(ask.waits) == 1
    with pytest.raises(ModelUnavailable) as error:
        ask(*([trouble] if isinstance(trouble, str) else
              [(trouble[0], dict(trouble[1]), trouble[2]) for _ in range(5)]))  # fmt: skip
    assert error.value.exit_code == 75
    assert "nothing is lost" in str(error.value)
    assert len(server.seen) == 2 + 4


def test_waits_grow_and_stay_well_under_a_minute(ask):
    with pytest.raises(ModelUnavailable, match="HTTP 500: oops"):
        ask(failure(500, "oops"))
    assert len(ask.waits) == 3
    assert all(0.5 * 2**i <= wait <= 2**i for i, wait in enumerate(ask.waits))


def test_retry_after_is_honoured(ask):
    assert ask(failure(429, headers={"retry-after": "7"}), answer()).text == "hello"
    assert 7.0 <= ask.waits[0] <= 7.0 * 1.25


def test_who_is_told_at_once_every_time_still_backs_off(ask, server):
    told = [failure(429, headers={"retry-after": "0"}) for _ in range(6)]
    ask(*told, answer())
    assert sum(ask.waits) > 30.0


@pytest.mark.parametrize("status", [429, 503])
def test_a_limit_per_minute_is_waited_out(ask, server, status):
    limited = [gemini(status, "You exceeded your current quota") for _ in range(6)]
    assert ask(*limited, answer("at last")).text == "at last"
    assert len(server.seen) == 7
    assert 30.0 < sum(ask.waits) < 63.0
    assert all(wait <= 60.0 for wait in ask.waits)


def test_a_limit_that_does_not_pass_is_given_up_with_the_servers_words(ask, server):
    with pytest.raises(ModelUnavailable, match="HTTP 429: You exceeded your current quota"):
        ask(gemini(429, "You exceeded your current quota"))
    assert 800.0 < sum(ask.waits) <= 900.0
    assert max(ask.waits) <= 60.0


def test_waiting_for_a_limit_uses_up_no_try(ask, server):
    limited = [gemini(429, "slow down") for _ in range(5)]
    trouble = [failure(500) for _ in range(3)]
    assert ask(*limited, *trouble, answer("at last")).text == "at last"


def test_retry_after_can_be_a_date(ask):
    dates = {
        "date": "Wed, 21 Oct 2026 07:28:00 GMT",
        "retry-after": "Wed, 21 Oct 2026 07:28:09 GMT",
    }
    ask(failure(429, headers=dates), answer())
    assert 9.0 <= ask.waits[0] <= 9.0 * 1.25


def test_a_retry_after_that_makes_no_sense_is_ignored(ask):
    ask(failure(429, headers={"retry-after": "soon"}), answer())
    assert 0.5 <= ask.waits[0] <= 1.0


def test_a_retry_after_of_minutes_is_honoured(ask):
    assert ask(failure(429, headers={"retry-after": "120"}), answer()).text == "hello"
    assert 120.0 <= ask.waits[0] <= 150.0


def test_a_long_retry_after_is_told_instead_of_waited(ask, server):
    with pytest.raises(ModelUnavailable, match="asks to wait 3600 s"):
        ask(failure(429, "daily limit", headers={"retry-after": "3600"}))
    assert ask.waits == []
    assert len(server.seen) == 1


def test_a_used_up_quota_is_not_waited_for(ask, server):
    with pytest.raises(ModelUnavailable, match="add credit"):
        ask(failure(429, "You exceeded your current quota", code="insufficient_quota"))
    assert len(server.seen) == 1


def test_a_server_that_hangs_is_given_up(ask, server):
    with pytest.raises(ModelUnavailable, match="did not answer in time"):
        ask(HANG, timeout_s=1.0)
    # Who asks may give up before the server's thread has read it.
    patience = time.monotonic() + 60
    while len(server.seen) < 4 and time.monotonic() < patience:
        time.sleep(0.01)
    assert len(server.seen) == 4


def test_a_server_that_is_not_there():
    server = Server()
    url = server.url
    server.server_close()
    model = OpenAIModel("m", key=None, base_url=url, sleep=lambda _: None)
    with pytest.raises(ModelUnavailable, match="no connection"):
        model.complete(REQUEST)
    model.close()


def test_a_model_that_wants_other_parameters_gets_them_from_then_on(server):
    model = OpenAIModel("o", key=KEY, base_url=server.url, sleep=lambda _: None)
    server.replies[:] = [
        failure(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."),
        failure(400, "Unsupported value: 'temperature' does not support 0.8 with this model."),
        answer("one"),
        answer("two"),
    ]
    assert model.complete(REQUEST).text == "one"
    assert model.complete(REQUEST).text == "two"
    model.close()
    bodies = [body for _, _, body in server.seen]
    assert len(bodies) == 4
    for body in bodies[2:]:
        assert body["max_completion_tokens"] == 100
        assert "max_tokens" not in body
        assert "temperature" not in body


def test_waits_end_when_nobody_has_time(server):
    waits = Waits()
    server.replies[:] = [gemini(429, "slow down")]
    model = OpenAIModel("m", key=KEY, base_url=server.url, sleep=waits.sleep)
    waits.end()
    with pytest.raises(ModelUnavailable, match="nobody waits"):
        model.complete(REQUEST)
    model.close()
    assert len(server.seen) == 1


def test_a_complaint_in_a_list_is_understood(ask, server):
    complaint = gemini(400, "Invalid value at 'temperature': out of range")
    assert ask(complaint, answer("one")).text == "one"
    assert "temperature" not in server.seen[1][2]


def test_a_complaint_that_does_not_help_is_a_refusal(ask, server):
    with pytest.raises(ModelRefused, match="temperature"):
        ask(failure(400, "temperature and max_completion_tokens are both wrong"))
    assert len(server.seen) == 3


def test_no_attempt_starts_after_the_total_time(server):
    server.replies[:] = [failure(500)]
    now = iter(range(0, 10_000, 100))
    model = OpenAIModel(
        "m",
        key=KEY,
        base_url=server.url,
        policy=RetryPolicy(tries=50, max_total_s=250.0),
        sleep=lambda _: None,
        clock=lambda: float(next(now)),
    )
    with pytest.raises(ModelUnavailable):
        model.complete(REQUEST)
    model.close()
    assert len(server.seen) <= 3


def test_the_key_is_not_shown():
    model = OpenAIModel("m", key=KEY)
    assert KEY not in repr(model)
    assert KEY not in str(vars(model)["_client"])
    model.close()

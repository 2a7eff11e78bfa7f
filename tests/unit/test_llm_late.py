"""A model's client is made once, and not before somebody asks."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from pike_hpc.llm import ModelRequest, ScriptedModel, load_script
from pike_hpc.llm.late import LateModel
from pike_hpc.records import Role

LOOK = """
import sys
from pike_hpc.llm import make_model
model = make_model(provider="openai", model="m", base_url="http://127.0.0.1:9/v1")
print(model.name, "openai" in sys.modules)
"""


def request():
    return ModelRequest(
        role=Role.OPTIMISE,
        system="s",
        user="u",
        temperature=0.0,
        max_output_tokens=9,
        request_key="t/p0/b0/r0",
    )


def test_it_is_made_once_however_many_ask():
    made = []

    def make():
        made.append(ScriptedModel(load_script("default")))
        return made[-1]

    late = LateModel("m", None, make)
    assert (late.name, late.max_cost_usd(request()), made) == ("m", 0.0, [])
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: late.complete(request()), range(8)))
    assert len(made) == 1
    assert {a.text for a in answers} == {made[0].complete(request()).text}


def test_who_only_looks_does_not_import_the_client():
    done = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "m False\n"

"""ScriptedModel: answers from a YAML script, the same for the same request. Needs no key.

Contract: an answer is chosen by role, request key and sample alone. First those with a `when`
pattern that fits the request key, in the script's order; else one of those without, by a digest.
`{{task_source}}` in an answer is replaced by the first block of the prompt that defines a class
`Model`, so a script can hold programs that really run. Costs nothing, takes no time.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from pike_hpc.config.schema import read
from pike_hpc.config.versions import check_version
from pike_hpc.config.yaml_source import MapNode, parse_mapping, read_file
from pike_hpc.llm.prices import max_input_tokens
from pike_hpc.llm.request import Completion, ModelRequest
from pike_hpc.records import Role, Usage, UsageError, digest

DEFAULT_SCRIPT = "default"

_PLACEHOLDER = "{{task_source}}"
_BLOCK = re.compile(r"^(`{3,})python\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
_MODEL = re.compile(r"^class Model\b", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedAnswer:
    """One answer of a script."""

    role: Role
    text: str
    when: str | None = None
    """Shell pattern on the request key, such as "*p0/b1/r*"; null: for whatever is left."""
    finish_reason: str = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script as written."""

    schema_version: int
    answers: tuple[ScriptedAnswer, ...]


def load_script(name: str) -> Script:
    """The script of this name or path. Raises UsageError."""
    if name == DEFAULT_SCRIPT:
        file = resources.files("pike_hpc.llm").joinpath("scripts", f"{DEFAULT_SCRIPT}.yaml")
        return _read(parse_mapping(file.read_text("utf-8"), f"{DEFAULT_SCRIPT}.yaml"))
    if not Path(name).is_file():
        raise UsageError(
            f"no script {name!r}",
            where="models: model",
            valid=f"{DEFAULT_SCRIPT}, or the path of a YAML file",
            fix="see pike_hpc/llm/scripts/default.yaml for the form",
        )
    return _read(read_file(Path(name)))


def _read(node: MapNode) -> Script:
    check_version(node, "script")
    return read(Script, node, {})


class ScriptedModel:
    """A model that says what its script says."""

    def __init__(self, script: Script, *, name: str = DEFAULT_SCRIPT) -> None:
        self._script, self._name = script, f"scripted:{name}"

    @property
    def name(self) -> str:
        """`scripted:` and the script's name."""
        return self._name

    def max_cost_usd(self, request: ModelRequest) -> float:
        """Nothing."""
        return 0.0

    def complete(self, request: ModelRequest) -> Completion:
        """The script's answer; an empty one where it has none for the role."""
        answer = self._choose(request)
        text = answer.text.replace(_PLACEHOLDER, _task_source(request.user)) if answer else ""
        usage = Usage(
            model=self._name,
            input_tokens=max_input_tokens(request.system + request.user),
            output_tokens=max_input_tokens(text) if text else 0,
        )
        reason = answer.finish_reason if answer else "stop"
        return Completion(text=text, finish_reason=reason, usage=usage)

    def _choose(self, request: ModelRequest) -> ScriptedAnswer | None:
        mine = [a for a in self._script.answers if a.role is request.role]
        for answer in mine:
            if answer.when and fnmatch.fnmatchcase(request.request_key, answer.when):
                return answer
        rest = [a for a in mine if a.when is None]
        if not rest:
            return None
        draw = digest(request.role.value, request.request_key, str(request.sample))
        return rest[int(draw, 16) % len(rest)]


def _task_source(prompt: str) -> str:
    """The first python block that defines a class Model; "" where there is none."""
    blocks = (block[2] for block in _BLOCK.finditer(prompt))
    return next((block.rstrip("\n") for block in blocks if _MODEL.search(block)), "")

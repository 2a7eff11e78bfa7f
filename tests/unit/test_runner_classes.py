"""Classes that a program has anew: what its task gives it is of them."""

import sys

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.runner.classes import adopted, in_stead  # noqa: E402
from pike_hpc.evaluate.runner.program import init_inputs, load_file  # noqa: E402

pytestmark = pytest.mark.torch

TASK = """
import enum
from collections import namedtuple
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn


class Act(enum.Enum):
    RELU = "relu"
    GELU = "gelu"


@dataclass(frozen=True)
class Config:
    act: Act
    width: int = 4


@dataclass(slots=True)
class Slotted:
    act: Act


class Pair(NamedTuple):
    one: Act
    other: int


class Model(nn.Module):
    pass


class Opt(enum.Flag):
    A = 1
    B = 2


BESIDE = Config(Act.GELU)
TABLE = {Act.RELU: Config(Act.RELU)}
BOTH = Opt.A | Opt.B


class Node:
    def __init__(self):
        self.me = self
        self.act = Act.RELU


NODE = Node()


def chosen(act=Act.GELU):
    return act is Act.GELU


def get_init_inputs():
    assert chosen()
    return [
        Act.GELU,
        Config(Act.RELU),
        BESIDE,
        {"pairs": [Pair(Act.GELU, 1)]},
        Slotted(Act.RELU),
        TABLE[Act.RELU],
        BOTH,
        NODE,
        NODE,
    ]
"""


TEXT = """
class Text(str):
    pass


BESIDE = Text("x")


def get_init_inputs():
    return [BESIDE]
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Loads a task's file and then a program's."""

    def both(program, task=TASK):
        for name in ("task", "candidate"):
            monkeypatch.setitem(sys.modules, name, None)
            del sys.modules[name]
        return load_file(tmp_path / "task.py", task), load_file(tmp_path / "candidate.py", program)

    return both


def test_a_copy_is_given_what_it_asks_for(load):
    task, program = load(TASK)
    values = init_inputs(task, torch.device("cpu"))
    act, config, beside, nested, slotted, found, both, node, again = values
    assert act is program.Act.GELU
    assert isinstance(config, program.Config)
    assert config == program.Config(program.Act.RELU)
    assert beside == program.Config(program.Act.GELU)
    assert nested == {"pairs": [program.Pair(program.Act.GELU, 1)]}
    assert isinstance(nested["pairs"][0], program.Pair)
    assert slotted == program.Slotted(program.Act.RELU)
    assert found == program.Config(program.Act.RELU)
    assert both == program.Opt.A | program.Opt.B
    assert isinstance(node, program.Node)
    assert node is again is node.me
    assert node.act is program.Act.RELU
    assert in_stead(task.Model) is task.Model is not program.Model
    assert in_stead(task.Config) is program.Config


OTHER_ACT = TASK.replace('GELU = "gelu"', 'SILU = "silu"').replace("Act.GELU", "Act.SILU")


@pytest.mark.parametrize(
    ("text", "own"),
    [(TASK.replace("width: int = 4", "depth: int = 4"), "Act"), (OTHER_ACT, "Config")],
)
def test_a_class_that_is_made_otherwise_is_the_programs_own_affair(load, text, own):
    task, program = load(text)
    act, config, *_ = init_inputs(task, torch.device("cpu"))
    for name, value in (("Act", act), ("Config", config)):
        assert type(value) is getattr(program if name == own else task, name)


def test_a_program_without_them_or_with_the_tasks_own_changes_nothing(load):
    for text in ("x = 1", "from task import Act, Config"):
        task, _ = load(text)
        act, config, *_ = init_inputs(task, torch.device("cpu"))
        assert act is task.Act.GELU
        assert type(config) is task.Config


def test_what_only_its_constructor_makes_stays_as_it_is(load):
    task, _ = load(TEXT, TEXT)
    assert init_inputs(task, torch.device("cpu")) == ["x"]
    assert adopted([1, "x", None]) == [1, "x", None]

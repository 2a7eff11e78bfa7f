"""The strategy that docs/writing-a-strategy.md shows works as it stands there."""

import re
import sys
import types
from pathlib import Path

from pike_hpc.search import Limits, replay
from pike_hpc.search.strategy import Setup

PAGE = Path(__file__).parents[2] / "docs" / "writing-a-strategy.md"


def test_the_example_decides(monkeypatch):
    source = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    module = types.ModuleType("repeat_example")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(source, str(PAGE), "exec"), module.__dict__)
    strategy = module.make_repeat(Setup(limits=Limits(queries=2), options={"programs": 3}))
    (action,) = strategy.decide(replay([]))
    assert action.node == "repeat/0"

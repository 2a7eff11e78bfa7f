"""Programs that compile an extension of a few lines: a second, and no header of torch."""

TASK = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        return 2.0 * self.linear(x)


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return []
"""

C_MODULE = """
#include <Python.h>
static PyObject* factor(PyObject* self, PyObject* none) { return PyFloat_FromDouble(FACTOR); }
static PyMethodDef methods[] = {{"factor", factor, METH_NOARGS, ""}, {0, 0, 0, 0}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "answer", 0, -1, methods};
extern "C" PyMODINIT_FUNC PyInit_answer(void) { return PyModule_Create(&module); }
"""

_PROGRAM = """
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

{before}
SOURCE = {source!r}
answer = load_inline("answer", SOURCE, no_implicit_headers=True)
print("loaded from", answer.__file__, flush=True)
{after}

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        return answer.factor() * self.linear(x)
"""


def extended(factor: float = 2.0, *, before: str = "", after: str = "", source: str = C_MODULE):
    """A candidate for TASK; right where `factor` is 2."""
    text = source.replace("FACTOR", repr(factor))
    return _PROGRAM.format(before=before, source=text, after=after)


def importing(code: str) -> str:
    """A candidate that does that while it is imported, where builds happen."""
    return f"import torch.utils.cpp_extension\n{code}\nclass ModelNew: pass\n"


_COMPILES = """
import torch, torch._inductor
import torch.nn as nn
from pathlib import Path
from torch._dynamo.utils import counters

FOLDER = Path(torch._inductor.runtime.cache_dir_utils.cache_dir())
print("at first", len([p for p in FOLDER.rglob("*") if p.is_file()]), flush=True)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.compiled = torch.compile(lambda x: FACTOR * self.linear(x))

    def forward(self, x):
        fresh, y = not counters, self.compiled(x)
        if fresh:
            print("hits", counters["inductor"]["fxgraph_cache_hit"], flush=True)
        return y
"""


def compiled(factor: str, more: str = "") -> str:
    """A program under torch.compile that says what was in its cache, and whether it was of use."""
    return _COMPILES.replace("FACTOR", factor) + more

"""A published solution beside its reference in one ordinary process, without any judge.

    python tests/bench/published_plain.py TASK.py SOLUTION.py DEVICE OUT.json

Both are constructed of one seed. `shipped`: as they are then, which is PIKE's way. `trained`: after
every BatchNorm of the reference was given gains, shifts and the statistics of its own inputs; those
of the solution get the same as they are made, and keep it where its constructor sets ones and
zeros, so that what that folds is right. Errors
are relative to how much the reference's answer moves with its input.
"""

import contextlib
import copy
import importlib.util
import json
import sys
from collections import defaultdict
from pathlib import Path

import torch
from torch import nn

NORM = nn.modules.batchnorm._NormBase
SEED, INPUTS = 0, 3
CLOSE = 1e-2
"""PIKE's tolerance, absolute and relative, which it asks of one input."""
MOST = 1e30
"""Of an error, for a document without infinities."""


def load(path, name):
    """A file as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def norms_told(tell):
    """Inside, `tell` is called with each BatchNorm as soon as it has its first numbers."""
    reset = NORM.reset_parameters

    def reset_and_tell(norm):
        reset(norm)
        tell(norm)

    NORM.reset_parameters = reset_and_tell
    try:
        yield
    finally:
        NORM.reset_parameters = reset


@contextlib.contextmanager
def kept_as_given(parameters):
    """Inside, what torch.nn.init is asked to do to these, a dict by id, is left undone."""
    names = ("constant_", "ones_", "zeros_", "normal_", "uniform_")
    shipped = {name: getattr(nn.init, name) for name in names}

    def unless_given(fill):
        return lambda tensor, *a, **k: tensor if id(tensor) in parameters else fill(tensor, *a, **k)

    for name, fill in shipped.items():
        setattr(nn.init, name, unless_given(fill))
    try:
        yield
    finally:
        for name, fill in shipped.items():
            setattr(nn.init, name, fill)


@contextlib.contextmanager
def tf32():
    """Inside, matrix products and convolutions may round their inputs to TF32."""
    flags = torch.backends.cuda.matmul, torch.backends.cudnn
    kept = [flag.allow_tf32 for flag in flags]
    try:
        for flag in flags:
            flag.allow_tf32 = True
        yield
    finally:
        for flag, was in zip(flags, kept, strict=True):
            flag.allow_tf32 = was


def inputs_of(task, seed, device):
    """Fresh inputs, tensors on the device."""
    torch.manual_seed(seed)
    return [x.to(device) if torch.is_tensor(x) else x for x in task.get_inputs()]


def answer(model, inputs, dtype=None):
    """The first tensor of its answer, in float64 on the host."""
    if dtype is not None:
        inputs = [x.to(dtype) if _is_real(x) else x for x in inputs]
    with torch.no_grad():
        found = model(*[x.clone() if torch.is_tensor(x) else x for x in inputs])
    return (found if torch.is_tensor(found) else found[0]).double().cpu()


def _is_real(value):
    return torch.is_tensor(value) and value.is_floating_point()


def errors(others, truths):
    """The most that answers are off by, over what inputs move in the true ones: both rms."""
    middle = torch.stack(truths).mean(0)
    moves = torch.stack([(truth - middle).pow(2).mean() for truth in truths]).mean().sqrt()
    off = [(other - truth).pow(2).mean() for other, truth in zip(others, truths, strict=True)]
    found = (torch.stack(off).max().sqrt() / moves).item()
    return found if found < MOST else MOST  # NaN is not less


def give_like(norms):
    """What gives each BatchNorm that is made the numbers of the next one of its width.

    Also the parameters that it gave them to, by id.
    """
    waiting, given = defaultdict(list), {}
    for norm in norms:
        waiting[norm.num_features].append(
            {name: tensor.detach().cpu().clone() for name, tensor in norm.state_dict().items()}
        )

    def give(norm):
        if waiting[norm.num_features]:
            norm.load_state_dict(waiting[norm.num_features].pop(0))
            given.update((id(parameter), parameter) for parameter in norm.parameters())

    return give, given


def train(task, model, norms, device):
    """Give BatchNorms gains, shifts and statistics as training would."""
    for norm in norms:
        norm.momentum = None
        norm.reset_running_stats()
        with torch.no_grad():
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.normal_(0.0, 0.2)
    model.train()
    for seed in (11, 12):
        answer(model, inputs_of(task, seed, device))
    model.eval()


def compared(task, model, norms, path, device):
    """One row: of each fresh input whether PIKE's tolerance holds, and errors."""
    solution = load(path, "solution")
    entry = getattr(solution, "ModelNew", None) or solution.Model
    arguments = task.get_init_inputs()
    try:
        give, given = give_like(norms)
        with norms_told(give), kept_as_given(given):
            torch.manual_seed(SEED)
            other = entry(*arguments).to(device).eval()
        inputs = [inputs_of(task, seed, device) for seed in range(1, 1 + INPUTS)]
        truths = [answer(model, x) for x in inputs]
        found = [answer(other, x) for x in inputs]
        smaller = copy.deepcopy(model).half()
        half = [answer(smaller, x, torch.half) for x in inputs]
        with tf32():
            rounded = [answer(model, x) for x in inputs]
        close = [
            torch.allclose(y, z, atol=CLOSE, rtol=CLOSE) for y, z in zip(found, truths, strict=True)
        ]
        return {
            "close": close,
            "error": errors(found, truths),
            "half": errors(half, truths),
            "tf32": errors(rounded, truths),
        }
    except Exception as raised:
        return {"raised": f"{type(raised).__name__}: {raised}"[:200]}


def main():
    """Run it."""
    path, solution, device, out = sys.argv[1:]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    task, norms = load(path, "task"), []
    with norms_told(norms.append):
        torch.manual_seed(SEED)
        model = task.Model(*task.get_init_inputs()).to(device).eval()
    rows = {"shipped": compared(task, model, norms, solution, device), "trained": None}
    if norms:
        train(task, model, norms, device)
        rows["trained"] = compared(task, model, norms, solution, device)
    Path(out).write_text(json.dumps(rows), "utf-8")


if __name__ == "__main__":
    main()

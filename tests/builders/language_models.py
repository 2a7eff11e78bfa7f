"""Level 5's language models at tiny sizes, as they are and all in float64."""

import contextlib

import torch
from torch.overrides import TorchFunctionMode

from pike_hpc.tasks import find_task
from pike_hpc.tasks.load import build

BF16, F32 = torch.bfloat16, torch.float32


TINY_MLA = {
    "dim": 16,
    "n_heads": 3,
    "q_lora_rank": 10,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
}

TINY_MOE = {"dim": 16, "moe_inter_dim": 12, "n_routed_experts": 5, "n_activated_experts": 2}

TINY_LLAMA = {"dim": 16, "n_layers": 2, "n_heads": 2, "vocab_size": 11, "multiple_of": 4}

TINY = {
    "1": {**TINY_MLA, "batch_size": 2, "seq_len": 5},
    "3": {
        **{name: size for name, size in TINY_MLA.items() if name != "q_lora_rank"},
        **TINY_MOE,
        "batch_size": 2,
        "seq_len": 6,
        "vocab_size": 11,
        "inter_dim": 20,
        "n_layers": 3,
        "max_batch_size": 3,
        "max_seq_len": 8,
        "original_seq_len": 7,
    },
    "4": {**TINY_LLAMA, "batch_size": 2, "seq_len": 6, "max_batch_size": 3, "max_seq_len": 8},
    "7": {**TINY_MOE, "batch_size": 9, "seq_len": 1},
    "12": {**TINY_MLA, "batch_size": 2, "prompt_len": 5, "max_batch_size": 3},
    "13": {**TINY_MOE, "batch_size": 3, "seq_len": 7},
    "14": {**TINY_LLAMA, "batch_size": 2, "prompt_len": 5, "max_batch_size": 3},
}


def tiny(task_id, **overrides):
    return build(find_task(f"level5/{task_id}", shape_overrides={**TINY[task_id], **overrides}))


class Widened(TorchFunctionMode):
    """Every floating dtype that a program names is float64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        def wide(value):
            return torch.float64 if value in (F32, BF16) else value

        if func is torch.Tensor.float:
            return args[0].double()
        args = [wide(a) if isinstance(a, torch.dtype) else a for a in args]
        kwargs = {k: wide(v) if k == "dtype" else v for k, v in (kwargs or {}).items()}
        return func(*args, **kwargs)


@contextlib.contextmanager
def float64():
    torch.set_default_dtype(torch.float64)
    try:
        with Widened():
            yield
    finally:
        torch.set_default_dtype(torch.float32)


def in_float64(task_id, **overrides):
    """(model, inputs, output), all made and computed in float64."""
    loaded = tiny(task_id, **overrides)
    with float64(), torch.no_grad():
        model, inputs = loaded.make_model().eval(), loaded.inputs()
        return model, inputs, model(*inputs)


def agree(ours, plain):
    assert ours.dtype == plain.dtype == torch.float64
    torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-9)

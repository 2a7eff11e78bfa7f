"""Rules that leave the reference's classes alone and prepare a copy of the model.

identity, TF32 off, torch.compile's modes and TensorRT, BatchNorm folding, pooling before a 1x1
convolution, channels-last, half body.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from pike_hpc.proposers.rules.draft import Draft, Rule, Setting
from pike_hpc.proposers.rules.reference import (
    BATCH_NORMS,
    CONVOLUTIONS,
    argument,
    classes,
    kind,
    kinds_used,
    returns_one_value,
    self_attribute,
    successive,
)

STRICT_FP32 = """
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False  # torch ships with True: convolutions lose 13 bits
"""

FOLD_BATCH_NORM = '''
FOLDS = {nn.Conv2d: fuse_conv_bn_eval, nn.Conv1d: fuse_conv_bn_eval, nn.Linear: fuse_linear_bn_eval}
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


def fold_batch_norm(model):
    """The model traced by torch.fx, each BatchNorm folded into the layer that only it reads."""
    traced = torch.fx.symbolic_trace(model)
    modules = dict(traced.named_modules())
    calls = [node for node in traced.graph.nodes if node.op == "call_module"]
    targets = [node.target for node in calls]
    for norm in calls:
        layer = norm.args[0]
        if not isinstance(modules[norm.target], NORMS) or layer not in calls:
            continue
        fold = FOLDS.get(type(modules[layer.target]))
        if fold and len(layer.users) == 1 and targets.count(layer.target) == 1:
            traced.set_submodule(layer.target, fold(modules[layer.target], modules[norm.target]))
            norm.replace_all_uses_with(layer)
            traced.graph.erase_node(norm)
    traced.recompile()
    return traced
'''

POOL_FIRST = '''
def pool_first(model):
    """The model traced by torch.fx, averages taken before 1x1 convolutions, not after them."""
    traced = torch.fx.symbolic_trace(model)
    modules = dict(traced.named_modules())
    calls = [node for node in traced.graph.nodes if node.op == "call_module"]
    for pool in calls:
        conv = pool.args[0]
        if not isinstance(modules[pool.target], nn.AvgPool2d) or conv not in calls:
            continue
        average, layer = modules[pool.target], modules[conv.target]
        pointwise = isinstance(layer, nn.Conv2d) and layer.kernel_size == layer.stride == (1, 1)
        padded = pointwise and (layer.padding != (0, 0) or average.padding not in (0, (0, 0)))
        if pointwise and not padded and not average.ceil_mode and len(conv.users) == 1:
            pool.replace_all_uses_with(conv)
            pool.args = conv.args
            conv.args = (pool,)
            pool.append(conv)
    traced.recompile()
    return traced
'''

CHANNELS_LAST = '''
def channels_last(x):
    """A batch of images with the channels innermost; anything else as it is."""
    if isinstance(x, torch.Tensor) and x.dim() == 4:
        return x.contiguous(memory_format=torch.channels_last)
    return x
'''

CAST = '''
def cast(x, dtype):
    """A tensor of floating-point numbers in this precision; anything else as it is."""
    if isinstance(x, torch.Tensor) and x.is_floating_point():
        return x.to(dtype)
    return x
'''


def _identity(draft: Draft, setting: Setting) -> Draft | str:
    return draft


def _strict_fp32(draft: Draft, setting: Setting) -> Draft | str:
    if setting.on_cpu:
        return "a CPU has no TF32: eager is strict already"
    return draft.plus(imports=("import torch",), helpers=(STRICT_FP32,))


def _fold_batch_norm(draft: Draft, setting: Setting) -> Draft | str:
    wanted = CONVOLUTIONS | {"Linear"}
    pairs = [(kind(first), kind(second)) for first, second in successive(draft.source)]
    if not any(first in wanted and second in BATCH_NORMS for first, second in pairs):
        return "no BatchNorm is seen directly after a convolution or linear layer"
    return draft.plus(
        imports=(
            "import torch",
            "import torch.fx",
            "from torch import nn",
            "from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval",
        ),
        helpers=(FOLD_BATCH_NORM,),
        steps=("fast = fold_batch_norm(fast)",),
    )


def _pool_first(draft: Draft, setting: Setting) -> Draft | str:
    for first, second in successive(draft.source):
        if kind(first) == "Conv2d" and kind(second) == "AvgPool2d" and _pointwise(first):
            return draft.plus(
                imports=("import torch", "import torch.fx", "from torch import nn"),
                helpers=(POOL_FIRST,),
                steps=("fast = pool_first(fast)",),
            )
    return "no AvgPool2d is seen directly after a 1x1 convolution"


def _pointwise(conv: ast.Call) -> bool:
    size = argument(conv, "kernel_size", 2)
    return size is not None and ast.unparse(size) in ("1", "(1, 1)")


def _channels_last(draft: Draft, setting: Setting) -> Draft | str:
    if "Conv2d" not in kinds_used(draft.source):
        return "the reference has no Conv2d"
    return draft.plus(
        imports=("import torch",),
        helpers=(CHANNELS_LAST,),
        steps=("fast = fast.to(memory_format=torch.channels_last)",),
        before=("channels_last({x})",),
    )


def _half_body(draft: Draft, setting: Setting) -> Draft | str:
    if setting.on_cpu and not setting.toolchain.cpu_bfloat16:
        return "this CPU does not multiply bfloat16 in hardware (no amx_bf16 or avx512_bf16)"
    if not returns_one_value(draft.source):
        return "the reference returns several values"
    if (name := _plain_tensor(draft.source)) is not None:
        return f"self.{name} is a plain tensor, which a change of precision would not reach"
    if any(word in draft.source for word in ("float16", "float64", ".half(", ".double(")):
        return "the reference chooses a precision itself"
    dtype = "torch.bfloat16" if setting.on_cpu else "torch.float16"
    return draft.plus(
        imports=("import torch",),
        helpers=(CAST,),
        steps=(f"fast = fast.to({dtype})",),
        before=(f"cast({{x}}, {dtype})",),
        after=("cast({x}, torch.float32)",),
    )


def _plain_tensor(source: str) -> str | None:
    """The name of an attribute that is assigned a tensor made by torch itself."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        name = self_attribute(node.targets[0])
        made_by = ast.unparse(node.value)
        if name and made_by.startswith("torch.") and not made_by.startswith("torch.nn."):
            return name
    return None


def _state(source: str) -> str | None:
    """The name of an attribute that a forward assigns."""
    for view in classes(source):
        for node in ast.walk(view.forward) if view.forward else ():
            if isinstance(node, ast.Assign):
                names = [name for target in node.targets if (name := self_attribute(target))]
                if names:
                    return names[0]
    return None


def _compiling(mode: str | None) -> Callable[[Draft, Setting], Draft | str]:
    """A rule's apply for one mode of torch.compile; every named mode replays graphs on a GPU."""
    call = "torch.compile({x})" if mode is None else f'torch.compile({{x}}, mode="{mode}")'

    def apply(draft: Draft, setting: Setting) -> Draft | str:
        graphs = mode is not None and not setting.on_cpu
        if draft.compile_call is not None:
            return "another mode of torch.compile is chosen already"
        if (lacks := setting.toolchain.lacks) is not None:
            return f"torch.compile needs {lacks}"
        if mode == "reduce-overhead" and setting.on_cpu:
            return "it replays CUDA graphs: on a CPU this mode is the default one"
        if graphs and not returns_one_value(draft.source):
            return "the reference returns several values, which the next replay would overwrite"
        if graphs and (name := _state(draft.source)) is not None:
            return f"self.{name} is kept between calls, which the next replay would overwrite"
        return draft.plus(imports=("import torch",), compile_call=call, own_output=not graphs)

    return apply


def _tensorrt(draft: Draft, setting: Setting) -> Draft | str:
    if draft.compile_call is not None:
        return "a mode of torch.compile is chosen already"
    if setting.on_cpu:
        return "TensorRT needs a GPU"
    if not setting.toolchain.tensorrt:
        return "torch_tensorrt is not installed"
    return draft.plus(
        imports=("import torch", "import torch_tensorrt  # registers the backend"),
        compile_call='torch.compile({x}, backend="tensorrt")',
    )


IDENTITY = Rule(
    name="identity",
    summary="the reference as it is",
    precondition="none",
    apply=_identity,
    stock=True,
)
STRICT = Rule(
    name="strict_fp32",
    summary="the reference with TF32 off everywhere",
    precondition="a GPU",
    apply=_strict_fp32,
    stock=True,
)
FOLD = Rule(
    name="fold_batch_norm",
    summary="BatchNorm folded into the convolution or linear layer before it",
    precondition="a BatchNorm directly after a convolution or linear layer; torch.fx can trace",
    apply=_fold_batch_norm,
)
POOL = Rule(
    name="pool_first",
    summary="average pooling moved before the 1x1 convolution, with which it commutes",
    precondition="an AvgPool2d without padding directly after a 1x1 convolution",
    apply=_pool_first,
)
LAYOUT = Rule(
    name="channels_last",
    summary="images and convolution weights with the channels innermost",
    precondition="a Conv2d",
    apply=_channels_last,
    stock=True,
)
HALF = Rule(
    name="half_body",
    summary="weights and arithmetic in 16 bits between inputs and outputs in 32",
    precondition="one output; on a CPU, hardware for bfloat16",
    apply=_half_body,
    stock=True,
)
COMPILE_MODES = (
    Rule(
        name="compile_default",
        summary="torch.compile",
        precondition="a C++ compiler and Python's headers",
        apply=_compiling(None),
        stock=True,
        needs_compiler=True,
    ),
    Rule(
        name="compile_reduce_overhead",
        summary="torch.compile, replayed as CUDA graphs",
        precondition="as compile_max_autotune, and a GPU",
        apply=_compiling("reduce-overhead"),
        stock=True,
        needs_compiler=True,
    ),
    Rule(
        name="compile_max_autotune",
        summary="torch.compile with kernels chosen by measuring",
        precondition="one output, no state kept between calls, a C++ compiler and Python's headers",
        apply=_compiling("max-autotune"),
        stock=True,
        needs_compiler=True,
    ),
)
TENSORRT = Rule(
    name="compile_tensorrt",
    summary="torch.compile with TensorRT as its backend",
    precondition="a GPU and the package torch_tensorrt",
    apply=_tensorrt,
    stock=True,
    needs_compiler=True,
)

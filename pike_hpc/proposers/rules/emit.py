"""A draft written out as a candidate file: docstring, reference, helpers, `class ModelNew`."""

from __future__ import annotations

import ast
import textwrap

from pike_hpc.proposers.rules.draft import Draft
from pike_hpc.proposers.rules.reference import edited, model_forward


def emit(draft: Draft, title: str, notes: tuple[str, ...]) -> str:
    """The candidate's source. The title and one line a rule go into its docstring."""
    imports, parts = _additions(draft)
    source = _with_header(draft.source, title, notes, imports)
    return "\n\n\n".join([source.rstrip("\n"), *(part.strip("\n") for part in parts)]) + "\n"


def clash(draft: Draft) -> str | None:
    """A name that the candidate would define and the reference already uses otherwise."""
    imports, parts = _additions(draft)
    added = _origins(ast.parse("\n".join([*imports, *parts])))
    taken = _origins(ast.parse(draft.source))
    for name, origin in added.items():
        if taken.get(name, origin) != origin:
            return name
    attributes = {n.attr for n in ast.walk(ast.parse(draft.source)) if isinstance(n, ast.Attribute)}
    return next((name for name in OWN_ATTRIBUTES if name in attributes), None)


def _additions(draft: Draft) -> tuple[tuple[str, ...], list[str]]:
    """Import lines and definitions that the candidate has beside the reference."""
    if draft.steps or draft.before or draft.after:
        imports = ("import copy", *draft.imports, "import torch")
        return imports, [*draft.helpers, _make_fast(draft), _prepared(draft)]
    last = _PLAIN if draft.compile_call is None else _compiled(draft)
    return draft.imports, [*draft.helpers, last]


OWN_ATTRIBUTES = ("fast", "packed")
"""Where a candidate keeps on its modules what it derived from their weights."""

_PLAIN = '''
class ModelNew(Model):
    """Model above."""
'''


def _compiled(draft: Draft) -> str:
    parameters, names = _signature(draft.source)
    warm_up = f"            super().forward({names})  # packs weights once, uncompiled\n"
    copied = "" if draft.own_output else ".clone()  # the next call overwrites it"
    return f'''
class ModelNew(Model):
    """Model, compiled at its first call."""

    def forward(self, {parameters}):
        if self.training:
            return super().forward({names})
        if not hasattr(self, "fast"):
{warm_up if _warms_up(draft) else ""}\
            self.fast = {(draft.compile_call or "{x}").format(x="super().forward")}
        return self.fast({names}){copied}
'''


def _make_fast(draft: Draft) -> str:
    """The function that makes the fast copy and the function that runs it."""
    steps = ["fast = copy.deepcopy(model)", "fast.__class__ = Model  # not prepared again"]
    steps += ["fast.requires_grad_(False)", *draft.steps]
    lines = ["def run(*inputs):"]
    lines += [f"    inputs = [{change.format(x='x')} for x in inputs]" for change in draft.before]
    output = "fast(*inputs)"
    for change in draft.after:
        output = change.format(x=output)
    lines += [f"    return {output}"]
    run = "run"
    if draft.compile_call is not None:
        run = draft.compile_call.format(x="run")
    if not draft.own_output:
        lines += ["", f"compiled = {run}"]
        run = "lambda *inputs: compiled(*inputs).clone()  # the next call overwrites its output"
    if _warms_up(draft):
        lines += ["", "run(*inputs)  # packs weights once, uncompiled"]
    body = "\n".join([*steps, "", *lines, "", f"return {run}"])
    return f'''
def make_fast(model{", inputs" if _warms_up(draft) else ""}):
    """A function that runs the model on the weights it holds now."""
{textwrap.indent(body, "    ")}
'''


def _prepared(draft: Draft) -> str:
    parameters, names = _signature(draft.source)
    return f'''
class ModelNew(Model):
    """Model, prepared for inference at its first call."""

    def forward(self, {parameters}):
        if self.training:
            return super().forward({names})
        if not hasattr(self, "fast"):
            self.fast = make_fast(self{f", ({names},)" if _warms_up(draft) else ""})
        return self.fast({names})
'''


def _warms_up(draft: Draft) -> bool:
    """Whether to run once before compiling, so that the compiler sees finished weights."""
    return draft.warm_up and draft.compile_call is not None


def _signature(source: str) -> tuple[str, str]:
    """The parameters of forward as written, self left out, and the arguments to pass them on."""
    forward = model_forward(source)
    arguments = forward.args if forward else None
    if not arguments or arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
        return "*inputs", "*inputs"
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)][1:]
    own = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(arg=name) for name in names],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=arguments.defaults,
    )
    return ast.unparse(own), ", ".join(names)


def _with_header(source: str, title: str, notes: tuple[str, ...], imports: tuple[str, ...]) -> str:
    """The reference under a docstring of the candidate's own, with imports it lacks."""
    tree = ast.parse(source)
    old = ast.get_docstring(tree)
    header = [title, ""]
    header += [f"Reference: {old.strip().splitlines()[0]}"] if old else []
    header += notes
    text = "\n".join(header).replace("\\", "/").replace('"""', "'''")
    if old is not None:
        source = edited(source, [(tree.body[0], "")]).lstrip("\n")
    source = _with_imports(source, imports)
    return f'"""{text}\n"""\n\n{source}'


def _with_imports(source: str, imports: tuple[str, ...]) -> str:
    """The source with import lines added before its first import, unless it has them."""
    tree = ast.parse(source)
    present = _origins(tree)
    missing = [
        line
        for line in dict.fromkeys(imports)
        if not _origins(ast.parse(line)).items() <= present.items()
    ]
    if not missing:
        return source
    standard = [line for line in missing if "torch" not in line]
    others = [line for line in missing if "torch" in line]
    leading = [node for node in tree.body if _leading(tree, node)]
    future = [n for n in leading if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    first = (future[-1].end_lineno or 0) if future else 0
    last = (leading[-1].end_lineno or 0) if leading else 0
    if standard and not _imports_standard(leading[len(future) :]):
        standard.append("")
    lines = source.splitlines()
    return "\n".join([*lines[:first], *standard, *lines[first:last], *others, *lines[last:]]) + "\n"


def _imports_standard(nodes: list[ast.stmt]) -> bool:
    """Whether the first of these imports is of something else than torch."""
    return bool(nodes) and "torch" not in ast.unparse(nodes[0])


def _origins(tree: ast.Module) -> dict[str, str]:
    """Names of the module to what they are: `nn` to torch.nn, a name defined here to `here`."""
    origins: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            origins |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            origins |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            origins[node.name] = f"here, line {node.lineno}"
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            origins |= dict.fromkeys(names, f"here, line {node.lineno}")
    return origins


def _leading(tree: ast.Module, node: ast.stmt) -> bool:
    """Whether this is an import before which only imports stand."""
    upto = tree.body[: tree.body.index(node) + 1]
    return all(isinstance(each, ast.Import | ast.ImportFrom) for each in upto)

"""What fresh weights have beside numbers drawn one by one: a structure that training would undo.

Rows that repeat, rows at right angles, few of many dimensions, kernels that are products of two
vectors, zeros. Judging weights are moved off that (`judge_weights`); weights from a seed are never
other than that, so that a program which only works for such weights looks right
(`judge_admission`).
"""

from __future__ import annotations

import torch

SIDE = 64
"""Rows of a matrix that are looked at, and of a kernel rows and columns: what all have, these have.
"""
LEAST = 16
"""Numbers of a row from which chance makes none like another."""
ALIKE = 0.99
"""Cosine of rows that repeat, but for a factor and what is added to all of a row."""
ANGLES = 0.01
"""Of the cosines that chance makes: who is below is at right angles on purpose."""
NOTHING, FEW = 1e-10, 0.05
"""An eigenvalue of the cosines that is none beside the largest, and which part of them must be: the
smallest of a square matrix's own are near zero as well."""
SAMPLE = 1 << 20
"""Numbers that are looked at for zeros; an odd step meets no pattern of powers of two."""
ZEROS = 0.01
"""Part of a parameter that chance does not make zero."""


def structure_of(parameter: torch.Tensor) -> str:
    """What it is, for a person; empty where its numbers seem drawn one by one or are not finite."""
    if not parameter.is_floating_point() or parameter.dim() < 2 or not parameter.numel():
        return ""
    values = parameter.detach()
    some = values.flatten()[:: max(1, values.numel() // SAMPLE) | 1]
    if int(torch.count_nonzero(some)) < (1 - ZEROS) * some.numel():
        return "has zeros"
    if values.dim() > 2 and min(values.shape[-2:]) > 2 and _are_products(values):
        return "has kernels that are products of two vectors"
    matrix = values.reshape(len(values), -1)
    matrix = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    return _of_rows(matrix[:: -(-len(matrix) // SIDE)].double())


def _of_rows(rows: torch.Tensor) -> str:
    """Of no more rows than each has numbers: (rows, numbers)."""
    count, length = rows.shape
    if count < 2 or length < LEAST or not bool(rows.isfinite().all()):
        return ""
    if float(_between(rows - rows.mean(dim=1, keepdim=True)).abs().max()) > ALIKE:
        return "has rows that repeat"
    between = _between(rows)
    typical = float(between.square().sum() / (count * (count - 1))) ** 0.5
    if count >= LEAST and typical < ANGLES / length**0.5:
        return "has rows at right angles"
    powers = torch.linalg.eigvalsh(between + torch.eye(count).to(between))
    if float((powers < NOTHING * powers[-1]).double().mean()) > FEW:
        return "has fewer dimensions than rows"
    return ""


def _between(rows: torch.Tensor) -> torch.Tensor:
    """Cosines between rows, none of a row with itself: (rows, rows)."""
    unit = torch.nn.functional.normalize(rows, dim=1)
    return (unit @ unit.T).fill_diagonal_(0.0)


def _are_products(values: torch.Tensor) -> bool:
    """Whether the last two dimensions hold products: all of them, as far as they are looked at.

    Of a large one a part: a part of a product is one.
    """
    kernels = values.reshape(-1, *values.shape[-2:])
    steps = [max(1, -(-size // SIDE)) for size in kernels.shape]
    kernels = kernels[:: steps[0], :: steps[1], :: steps[2]].double()
    if not bool(kernels.isfinite().all()):
        return False
    powers = torch.linalg.svdvals(kernels)
    return bool((powers[:, 1] < 1e-5 * powers[:, 0]).all())

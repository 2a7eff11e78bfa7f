"""What fresh weights have beside numbers drawn one by one: a structure that training would undo.

Rows that repeat, rows at right angles, few of many dimensions, kernels that are products of two
vectors, zeros. Judging weights are moved off that (`judge_weights`); weights from a seed are never
other than that, so that a program which only works for such weights looks right
(`judge_admission`).
"""

from __future__ import annotations

import torch

ROWS = 64
"""Of a matrix that are looked at: what all have, these have."""
LEAST = 16
"""Numbers of a row from which chance makes none like another."""
ALIKE = 0.99
"""Cosine of rows that repeat, but for a factor."""
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
    """What it is, for a person; empty where its numbers seem drawn one by one."""
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
    count, length = matrix.shape
    if count < 2 or length < LEAST:
        return ""
    step = -(-count // ROWS)
    rows = torch.nn.functional.normalize(matrix[::step].double(), dim=1)
    return _of_rows(rows)


def _of_rows(rows: torch.Tensor) -> str:
    """Of rows of length one, no more of them than a row has numbers: (rows, numbers)."""
    count, length = rows.shape
    cosines = rows @ rows.T
    between = cosines - torch.diag(cosines.diagonal())
    if float(between.abs().max()) > ALIKE:
        return "has rows that repeat"
    typical = float(between.square().sum() / (count * (count - 1))) ** 0.5
    if count >= LEAST and typical < ANGLES / length**0.5:
        return "has rows at right angles"
    powers = torch.linalg.eigvalsh(cosines)
    if float((powers < NOTHING * powers[-1]).double().mean()) > FEW:
        return "has fewer dimensions than rows"
    return ""


def _are_products(values: torch.Tensor) -> bool:
    """Whether the last two dimensions hold products: all of them, as far as they are looked at."""
    kernels = values.reshape(-1, *values.shape[-2:])
    kernels = kernels[:: -(-len(kernels) // ROWS)].double()
    powers = torch.linalg.svdvals(kernels)
    return bool((powers[:, 1] < 1e-5 * powers[:, 0]).all())

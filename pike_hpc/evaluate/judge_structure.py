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
COLUMNS = 1 << 16
"""Numbers of each row that are held in double precision at a time: 32 MB of 64 rows."""
PRODUCT = 1e-5
"""What may be left of a kernel without the product that fits it best, beside its largest number."""
NEAR_ZERO = 1e-12
"""Part of a row's sum of squares that rounding leaves where nothing is."""


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
    return _of_rows(matrix[:: -(-len(matrix) // SIDE)])


def _of_rows(rows: torch.Tensor) -> str:
    """Of no more rows than each has numbers: (rows, numbers)."""
    count, length = rows.shape
    if count < 2 or length < LEAST:
        return ""
    products, sums = _products(rows)
    if not bool(products.isfinite().all()):
        return ""
    means = sums / length
    if float(_cosines(products - length * means.outer(means), products.diag()).abs().max()) > ALIKE:
        return "has rows that repeat"
    between = _cosines(products, products.diag())
    typical = float(between.square().sum() / (count * (count - 1))) ** 0.5
    if count >= LEAST and typical < ANGLES / length**0.5:
        return "has rows at right angles"
    powers = torch.linalg.eigvalsh(between + torch.eye(count).to(between))
    if float((powers < NOTHING * powers[-1]).double().mean()) > FEW:
        return "has fewer dimensions than rows"
    return ""


def _products(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of all rows with all rows, and their sums: (rows, rows) and (rows,), on the CPU.

    So is all that follows: what solves on a GPU keeps a hundred megabytes of it for good.
    """
    products = rows.new_zeros(len(rows), len(rows), dtype=torch.float64)
    sums = products.new_zeros(len(rows))
    for part in torch.split(rows, COLUMNS, dim=1):
        finer = part.double()
        products += finer @ finer.T
        sums += finer.sum(dim=1)
    return products.cpu(), sums.cpu()


def _cosines(products: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
    """Cosines between rows, none of a row with itself nor with nothing: (rows, rows).

    Args:
        products: of what is looked at, with each other.
        squares: of the rows themselves; far less than that is nothing.
    """
    power = products.diag()
    root = power.clamp(min=0.0).sqrt().masked_fill(power <= NEAR_ZERO * squares, torch.inf)
    return (products / root / root[:, None]).fill_diagonal_(0.0)


def _are_products(values: torch.Tensor) -> bool:
    """Whether the last two dimensions hold products: all of them, as far as they are looked at.

    Of a large one a part: a part of a product is one. What is left of it without the product of
    the row and the column in which its largest number lies is nothing.
    """
    kernels = values.reshape(-1, *values.shape[-2:])
    steps = [max(1, -(-size // SIDE)) for size in kernels.shape]
    kernels = kernels[:: steps[0], :: steps[1], :: steps[2]].cpu().double()
    if not bool(kernels.isfinite().all()):
        return False
    largest, at = kernels.flatten(1).abs().max(dim=1)
    each, width = torch.arange(len(kernels)), kernels.shape[2]
    row, column = kernels[each, at // width], kernels[each, :, at % width]
    pivot = row[each, at % width]
    left = kernels * pivot[:, None, None] - column[:, :, None] * row[:, None, :]
    return bool((left.abs().amax(dim=(1, 2)) < PRODUCT * largest.square()).all())

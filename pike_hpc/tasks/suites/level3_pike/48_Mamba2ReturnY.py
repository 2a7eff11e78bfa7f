"""Mamba 2's state-space duality in chunks: all outputs.

Quirk: A, B and C are parameters sized by the batch; A is of both signs, so values grow to 1e14.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, batch_size, seq_length, n_heads, d_head, d_state, block_len):
        super().__init__()
        self.block_len = block_len
        self.A = nn.Parameter(torch.randn(batch_size, seq_length, n_heads))
        self.B = nn.Parameter(torch.randn(batch_size, seq_length, n_heads, d_state))
        self.C = nn.Parameter(torch.randn(batch_size, seq_length, n_heads, d_state))

    def segsum(self, x):
        """Sums of x over (j, i] for every i >= j of the last dimension; -inf above the diagonal."""
        T = x.size(-1)
        total = torch.cumsum(x, dim=-1)
        sums = total[..., :, None] - total[..., None, :]
        lower = torch.tril(torch.ones(T, T, device=x.device, dtype=torch.bool))
        return sums.masked_fill(~lower, float("-inf"))

    def chunked(self, x):
        """(b, chunks * length, ...) to (b, chunks, length, ...)."""
        return x.unflatten(1, (-1, self.block_len))

    def forward(self, X, initial_states=None):
        X, A, B, C = (self.chunked(x) for x in (X, self.A, self.B, self.C))
        A = A.permute(0, 3, 1, 2)
        A_cumsum = torch.cumsum(A, dim=-1)

        # Within each chunk. b batch, c chunk, l and s positions, h head, n state, p channel
        L = torch.exp(self.segsum(A))
        Y_diag = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", C, B, L, X)

        # The state that each chunk leaves behind, had it begun with none.
        decay_states = torch.exp(A_cumsum[..., -1:] - A_cumsum)
        states = torch.einsum("bclhn,bhcl,bclhp->bchpn", B, decay_states, X)

        # Between chunks: z is the chunk that a state arrives at.
        if initial_states is None:
            initial_states = torch.zeros_like(states[:, :1])
        states = torch.cat([initial_states, states], dim=1)
        decay_chunk = torch.exp(self.segsum(F.pad(A_cumsum[..., -1], (1, 0))))
        new_states = torch.einsum("bhzc,bchpn->bzhpn", decay_chunk, states)

        # From the states that arrive to the positions of the chunk.
        Y_off = torch.einsum("bclhn,bchpn,bhcl->bclhp", C, new_states[:, :-1], torch.exp(A_cumsum))
        return (Y_diag + Y_off).flatten(1, 2)


batch_size = 16
seq_length = 128
n_heads = 8
d_head = 64
d_state = 16
block_len = 64


def get_inputs():
    return [torch.randn(batch_size, seq_length, n_heads, d_head)]


def get_init_inputs():
    return [batch_size, seq_length, n_heads, d_head, d_state, block_len]

"""Level 5's DeepSeek-V3 and Llama 2 tasks equal plain forms that share no code with them.

In float64, at tiny sizes: rotations as cosines and sines, attention by loops or masks, experts
all computed.
"""

import math

import pytest

torch = pytest.importorskip("torch")

from builders.language_models import agree, float64, in_float64, tiny  # noqa: E402

from pike_hpc.tasks import find_task  # noqa: E402
from pike_hpc.tasks.load import build  # noqa: E402

pytestmark = pytest.mark.torch


# Rotations.


def frequencies(d, theta=10000.0):
    return [theta ** (-2 * i / d) for i in range(d // 2)]


def turned(x, angles):
    """Rope as cosines and sines: x (..., position, head, d), angles (position, d / 2)."""
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


@pytest.mark.parametrize("task_id", ["1", "3"])
def test_long_contexts_have_yarn_frequencies(task_id):
    namespace = build(find_task(f"level5/{task_id}")).namespace
    angles = namespace["precompute_freqs_cis"](namespace["ModelArgs"]())[1].angle()
    plain = frequencies(64)

    def pair(turns):  # the pair that makes so many turns in 4096 positions
        return 32 * math.log(4096 / (2 * math.pi * turns), 10000.0)

    first, last = math.floor(pair(32)), math.ceil(pair(1))
    assert (first, last) == (10, 23)
    slow = [min(max((i - first) / (last - first), 0), 1) for i in range(32)]
    expected = [f * (1 - s) + f / 40 * s for f, s in zip(plain, slow, strict=True)]
    assert angles.tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("task_id", ["4", "12", "14"])
def test_short_contexts_have_plain_frequencies(task_id):
    namespace = build(find_task(f"level5/{task_id}")).namespace
    if task_id == "12":
        freqs_cis = namespace["precompute_freqs_cis"](namespace["ModelArgs"]())
    else:
        freqs_cis = namespace["precompute_freqs_cis"](128, 8194)
    expected = frequencies(2 * freqs_cis.size(1))
    assert freqs_cis[1].angle().tolist() == pytest.approx(expected, rel=1e-5)
    assert freqs_cis.dtype == torch.complex64
    turns = torch.polar(torch.ones(()), torch.tensor(100.0) * expected[3])
    torch.testing.assert_close(freqs_cis[100, 3], turns, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("task_id", ["1", "3", "4", "12", "14"])
def test_rotations_turn_neighbouring_pairs(task_id):
    x, angles = torch.randn(2, 5, 3, 8), torch.randn(5, 4)
    rotations = torch.polar(torch.ones(5, 4), angles)
    rotated = tiny(task_id).namespace["rotate"](x, rotations)
    torch.testing.assert_close(rotated, turned(x, angles))


def test_the_decoded_token_is_turned_as_position_zero():
    _, position, freqs_cis = tiny("12").inputs()
    assert position == 5
    assert torch.equal(freqs_cis, torch.ones(1, 2, dtype=torch.complex64))


# Latent attention.


def latent(model, x, angles):
    """q, k, v of every head, un-absorbed, by the names of tasks 1 and 12."""
    q = model.wq_b(model.q_norm(model.wq_a(x))).unflatten(-1, (3, 10))
    q = torch.cat([q[..., :6], turned(q[..., 6:], angles)], dim=-1)
    low = model.wkv_a(x)
    shared = turned(low[..., None, 8:], angles)
    kv = model.wkv_b(model.kv_norm(low[..., :8])).unflatten(-1, (3, 11))
    k = torch.cat([kv[..., :6], shared.repeat(1, 1, 3, 1)], dim=-1)
    return q, k, kv[..., 6:]


def weighted(query, keys, values, scale):
    """One query's softmax average of a list of values."""
    weights = torch.stack([query @ key for key in keys]).mul(scale).softmax(dim=0)
    return sum(w * v for w, v in zip(weights, values, strict=True))


def test_attention_runs_causally_over_the_heads_of_a_token():
    model, (x, _, freqs_cis), output = in_float64("1")
    with torch.no_grad():
        q, k, v = latent(model, x, freqs_cis.angle())
        scale = 10**-0.5 * (0.1 * math.log(40) + 1) ** 2
        plain = torch.empty(2, 5, 3, 5, dtype=torch.float64)
        for row, position, head in torch.cartesian_prod(*map(torch.arange, (2, 5, 3))).tolist():
            keys, values = k[row, position, : head + 1], v[row, position, : head + 1]
            plain[row, position, head] = weighted(q[row, position, head], keys, values, scale)
        agree(output, model.wo(plain.flatten(2)))


def test_the_new_token_asks_the_heads_of_every_cached_position():
    model, (x, _, _), output = in_float64("12")
    with float64(), torch.no_grad():
        angles = torch.outer(torch.arange(6.0), torch.tensor(frequencies(4)))
        angles[5] = 0  # the new token is turned as position 0
        q, k, v = latent(model, torch.cat([model.prompt, x], dim=1), angles)
        agree(model.k_cache[:2], k)
        agree(model.v_cache[:2], v)
        assert not model.k_cache[2].any()
        plain = torch.empty(2, 6, 3, 5)
        for row, position, head in torch.cartesian_prod(*map(torch.arange, (2, 6, 3))).tolist():
            keys, values = k[row, position], v[row, position]
            plain[row, position, head] = weighted(q[row, 5, head], keys, values, 10**-0.5)
        agree(output, model.wo(plain.flatten(2)))


def rms_norm(x, weight, eps):
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight


def swiglu(layer, x):
    a, b = x @ layer.w1.weight.T, x @ layer.w3.weight.T
    return (a * a.sigmoid() * b) @ layer.w2.weight.T


def experts(layer, x):
    """Every expert on every token, and a mask."""
    scores = (x @ layer.gate.weight.T).softmax(dim=-1)
    least = scores.sort(dim=-1, descending=True).values[..., 1:2]
    weights = scores * (scores >= least)
    routed = sum(weights[..., i, None] * swiglu(e, x) for i, e in enumerate(layer.experts))
    return routed + swiglu(layer.shared_experts, x)


def unabsorbed(attention, x, angles, scale):
    """Ordinary attention, each position to all, with keys and values of every head."""
    q = attention.wq(x).unflatten(-1, (3, 10))
    q = torch.cat([q[..., :6], turned(q[..., 6:], angles)], dim=-1)
    low = attention.wkv_a(x)
    kv = rms_norm(low[..., :8], attention.kv_norm.weight, 1e-6) @ attention.wkv_b.weight.T
    kv = kv.unflatten(-1, (3, 11))
    k = torch.cat([kv[..., :6], turned(low[..., None, 8:], angles).repeat(1, 1, 3, 1)], dim=-1)
    weights = torch.einsum("bihd,bjhd->bhij", q, k).mul(scale).softmax(dim=-1)
    y = torch.einsum("bhij,bjhd->bihd", weights, kv[..., 6:])
    return y.flatten(2) @ attention.wo.weight.T


def test_deepseek_equals_its_unabsorbed_dense_form():
    model, (tokens,), output = in_float64("3")
    scale = 10**-0.5 * (0.1 * math.log(40) + 1) ** 2
    with torch.no_grad():
        x, angles = model.embed.weight[tokens], model.freqs_cis[:6].angle()
        for i, layer in enumerate(model.layers):
            normed = rms_norm(x, layer.attn_norm.weight, 1e-6)
            x = x + unabsorbed(layer.attn, normed, angles, scale)
            normed = rms_norm(x, layer.ffn_norm.weight, 1e-6)
            x = x + (swiglu if i == 0 else experts)(layer.ffn, normed)
        plain = rms_norm(x[:, -1], model.norm.weight, 1e-6) @ model.head.weight.T
    agree(output, plain)


@pytest.mark.parametrize("batch_size", [1, 9])
@pytest.mark.parametrize("task_id", ["7", "13"])
def test_experts_equal_their_masked_dense_form(task_id, batch_size):
    model, (x,), output = in_float64(task_id, batch_size=batch_size, seq_len=1)
    with torch.no_grad():
        agree(output, experts(model, x))


# Llama.


def llama(model, tokens, sees):
    """Logits; position i sees position j where sees[i, j]."""
    angles = torch.outer(torch.arange(tokens.size(1)).double(), torch.tensor(frequencies(8)))
    x = model.tok_embeddings.weight[tokens]
    for layer in model.layers:
        normed = rms_norm(x, layer.attention_norm.weight, 1e-5)
        q, k, v = (
            (normed @ w.weight.T).unflatten(-1, (2, 8))
            for w in (layer.attention.wq, layer.attention.wk, layer.attention.wv)
        )
        scores = torch.einsum("bihd,bjhd->bhij", turned(q, angles), turned(k, angles)) / 8**0.5
        weights = scores.masked_fill(~sees, -math.inf).softmax(dim=-1)
        y = torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)
        x = x + y @ layer.attention.wo.weight.T
        normed = rms_norm(x, layer.ffn_norm.weight, 1e-5)
        x = x + swiglu(layer.feed_forward, normed)
    return rms_norm(x, model.norm.weight, 1e-5) @ model.output.weight.T


def test_every_position_of_llama_sees_every_other():
    model, (tokens,), output = in_float64("4")
    with float64(), torch.no_grad():
        agree(output, llama(model, tokens, torch.ones(6, 6, dtype=torch.bool)))


@pytest.mark.parametrize("n_layers", [1, 3])
def test_a_decoded_token_sees_a_prompt_that_did_not_see_it(n_layers):
    model, (token, position), output = in_float64("14", n_layers=n_layers)
    assert position == 5
    sees = torch.ones(6, 6, dtype=torch.bool)
    with float64(), torch.no_grad():
        tokens = torch.cat([model.prompt, token], dim=1)
        unmasked = llama(model, tokens, sees)[:, -1:]
        sees[:5, 5] = False
        agree(output, llama(model, tokens, sees)[:, -1:])
    # Without a mask the prompt would see the new token, which shows from the second layer on.
    assert torch.allclose(output, unmasked) == (n_layers == 1)


@pytest.mark.parametrize("task_id", ["3", "4"])
def test_caches_carry_over_to_a_later_start(task_id):
    # In one layer keys and values hold a token alone, so parts and the whole must agree.
    sizes = {"n_layers": 1}
    model, (tokens,), output = in_float64(task_id, **sizes)
    with float64(), torch.no_grad():
        model(tokens[:, :4])
        last = model(tokens[:, 4:], 4)
    whole = output if task_id == "3" else output[:, 4:]
    agree(last, whole)

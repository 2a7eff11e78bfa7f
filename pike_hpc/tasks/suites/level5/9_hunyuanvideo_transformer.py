"""HunyuanVideo's denoiser: double- and single-stream blocks over video and text, in bfloat16.

Quirk: cos and sin hold each frequency in both halves, while the rotation pairs neighbours.
Quirk: the text mask counts valid tokens for the joint attention; the text refiner ignores it.
Quirk: padded text tokens attend to each other, as a second sequence of each sample.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

DTYPE = torch.bfloat16

batch_size = 1
in_channels = 16
frames = 3
height = 32
width = 32
patch_t = 1
patch_h = 2
patch_w = 2
text_tokens = 10
text_size = 1024
vector_size = 1024
hidden_size = 2048
num_heads = 16
head_size = hidden_size // num_heads
mlp_size = 4 * hidden_size
refiner_depth = 2
double_depth = 20
single_depth = 40
frequency_size = 256
max_period = 10000
rope_theta = 10000


def linear(in_features, out_features):
    return nn.Linear(in_features, out_features, dtype=DTYPE)


def plain_norm():
    return nn.LayerNorm(hidden_size, eps=1e-6, elementwise_affine=False)


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


def split_heads(qkv):
    """(batch, tokens, 3 * hidden) as q, k, v of (batch, tokens, heads, head size)."""
    return qkv.unflatten(2, (3, num_heads, head_size)).unbind(2)


def attention(q, k, v, mask=None):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    x = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return x.transpose(1, 2).flatten(2)


def rotate_half(x):
    """Neighbours (a, b) become (-b, a)."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((-b, a), dim=-1).flatten(-2)


def rotate(x, cos, sin):
    cos, sin = cos[None, :, None], sin[None, :, None]
    return (x.float() * cos + rotate_half(x.float()) * sin).type_as(x)


def same_sequence_mask(text_mask, image_tokens):
    """Which tokens of cat(image, text) attend to which: valid to valid, padded to padded."""
    lengths = image_tokens + text_mask.sum(dim=1, keepdim=True)
    positions = torch.arange(image_tokens + text_mask.shape[1], device=text_mask.device)
    valid = positions < lengths
    return (valid[:, :, None] == valid[:, None, :]).unsqueeze(1)


class RMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, dtype=DTYPE))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return wide.type_as(x) * self.weight


class PatchEmbed(nn.Module):
    def __init__(self):
        super().__init__()
        patch = (patch_t, patch_h, patch_w)
        self.proj = nn.Conv3d(in_channels, hidden_size, patch, stride=patch, dtype=DTYPE)
        nn.init.xavier_uniform_(self.proj.weight.view(hidden_size, -1))
        nn.init.zeros_(self.proj.bias)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class TimestepEmbedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(
            linear(frequency_size, hidden_size), nn.SiLU(), linear(hidden_size, hidden_size)
        )
        nn.init.normal_(self.mlp[0].weight, std=0.02)
        nn.init.normal_(self.mlp[2].weight, std=0.02)

    def forward(self, t):
        half = frequency_size // 2
        steps = torch.arange(half, dtype=t.dtype, device=t.device)
        angles = t[:, None] * torch.exp(-math.log(max_period) * steps / half)
        embedding = torch.cat((angles.cos(), angles.sin()), dim=-1)
        return self.mlp(embedding.to(self.mlp[0].weight.dtype))


class VectorEmbedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_layer = linear(vector_size, hidden_size)
        self.out_layer = linear(hidden_size, hidden_size)

    def forward(self, x):
        return self.out_layer(F.silu(self.in_layer(x)))


class TextProjection(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear_1 = linear(text_size, hidden_size)
        self.linear_2 = linear(hidden_size, hidden_size)

    def forward(self, x):
        return self.linear_2(F.silu(self.linear_1(x)))


class Mlp(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.fc1 = linear(hidden_size, mlp_size)
        self.act = act
        self.fc2 = linear(mlp_size, hidden_size)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class RefinerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden_size, eps=1e-6, dtype=DTYPE)
        self.self_attn_qkv = linear(hidden_size, 3 * hidden_size)
        self.self_attn_proj = linear(hidden_size, hidden_size)
        self.norm2 = nn.LayerNorm(hidden_size, eps=1e-6, dtype=DTYPE)
        self.mlp = Mlp(nn.SiLU())
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), linear(hidden_size, 2 * hidden_size))

    def forward(self, x, c):
        gate_attention, gate_mlp = self.adaLN_modulation(c).unsqueeze(1).chunk(2, dim=2)
        q, k, v = split_heads(self.self_attn_qkv(self.norm1(x)))
        x = x + self.self_attn_proj(attention(q, k, v)) * gate_attention
        return x + self.mlp(self.norm2(x)) * gate_mlp


class IndividualTokenRefiner(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(RefinerBlock() for _ in range(refiner_depth))

    def forward(self, x, c):
        for block in self.blocks:
            x = block(x, c)
        return x


class SingleTokenRefiner(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_embedder = linear(text_size, hidden_size)
        self.t_embedder = TimestepEmbedder()
        self.c_embedder = TextProjection()
        self.individual_token_refiner = IndividualTokenRefiner()

    def forward(self, text, t):
        c = self.t_embedder(t) + self.c_embedder(text.mean(dim=1))
        return self.individual_token_refiner(self.input_embedder(text), c)


class ModulateDiT(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.linear = linear(hidden_size, factor * hidden_size)

    def forward(self, vec):
        return self.linear(F.silu(vec)).chunk(self.factor, dim=-1)


class DoubleStreamBlock(nn.Module):
    def __init__(self):
        super().__init__()
        for stream in ("img", "txt"):
            self.add_module(f"{stream}_mod", ModulateDiT(6))
            self.add_module(f"{stream}_norm1", plain_norm())
            self.add_module(f"{stream}_attn_qkv", linear(hidden_size, 3 * hidden_size))
            self.add_module(f"{stream}_attn_q_norm", RMSNorm(head_size))
            self.add_module(f"{stream}_attn_k_norm", RMSNorm(head_size))
            self.add_module(f"{stream}_attn_proj", linear(hidden_size, hidden_size))
            self.add_module(f"{stream}_norm2", plain_norm())
            self.add_module(f"{stream}_mlp", Mlp(nn.GELU(approximate="tanh")))

    def forward(self, img, txt, vec, mask, cos, sin):
        i_shift1, i_scale1, i_gate1, i_shift2, i_scale2, i_gate2 = self.img_mod(vec)
        t_shift1, t_scale1, t_gate1, t_shift2, t_scale2, t_gate2 = self.txt_mod(vec)

        h = modulate(self.img_norm1(img), i_shift1, i_scale1)
        img_q, img_k, img_v = split_heads(self.img_attn_qkv(h))
        img_q = rotate(self.img_attn_q_norm(img_q), cos, sin)
        img_k = rotate(self.img_attn_k_norm(img_k), cos, sin)

        h = modulate(self.txt_norm1(txt), t_shift1, t_scale1)
        txt_q, txt_k, txt_v = split_heads(self.txt_attn_qkv(h))
        txt_q, txt_k = self.txt_attn_q_norm(txt_q), self.txt_attn_k_norm(txt_k)

        q = torch.cat((img_q, txt_q), dim=1)
        k = torch.cat((img_k, txt_k), dim=1)
        v = torch.cat((img_v, txt_v), dim=1)
        both = attention(q, k, v, mask)
        img_attn, txt_attn = both[:, : img.shape[1]], both[:, img.shape[1] :]

        img = img + self.img_attn_proj(img_attn) * i_gate1.unsqueeze(1)
        h = modulate(self.img_norm2(img), i_shift2, i_scale2)
        img = img + self.img_mlp(h) * i_gate2.unsqueeze(1)

        txt = txt + self.txt_attn_proj(txt_attn) * t_gate1.unsqueeze(1)
        h = modulate(self.txt_norm2(txt), t_shift2, t_scale2)
        txt = txt + self.txt_mlp(h) * t_gate2.unsqueeze(1)
        return img, txt


class SingleStreamBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear1 = linear(hidden_size, 3 * hidden_size + mlp_size)
        self.linear2 = linear(hidden_size + mlp_size, hidden_size)
        self.q_norm = RMSNorm(head_size)
        self.k_norm = RMSNorm(head_size)
        self.pre_norm = plain_norm()
        self.mlp_act = nn.GELU(approximate="tanh")
        self.modulation = ModulateDiT(3)

    def forward(self, x, vec, image_tokens, mask, cos, sin):
        shift, scale, gate = self.modulation(vec)
        h = self.linear1(modulate(self.pre_norm(x), shift, scale))
        qkv, mlp = h.split((3 * hidden_size, mlp_size), dim=-1)
        q, k, v = split_heads(qkv)
        q, k = (
            torch.cat((rotate(z[:, :image_tokens], cos, sin), z[:, image_tokens:]), dim=1)
            for z in (self.q_norm(q), self.k_norm(k))
        )
        h = torch.cat((attention(q, k, v, mask), self.mlp_act(mlp)), dim=2)
        return x + self.linear2(h) * gate.unsqueeze(1)


class FinalLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_final = plain_norm()
        self.linear = linear(hidden_size, patch_t * patch_h * patch_w * in_channels)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), linear(hidden_size, 2 * hidden_size))

    def forward(self, x, vec):
        shift, scale = self.adaLN_modulation(vec).chunk(2, dim=1)
        return self.linear(modulate(self.norm_final(x), shift, scale))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.img_in = PatchEmbed()
        self.txt_in = SingleTokenRefiner()
        self.time_in = TimestepEmbedder()
        self.vector_in = VectorEmbedder()
        self.double_blocks = nn.ModuleList(DoubleStreamBlock() for _ in range(double_depth))
        self.single_blocks = nn.ModuleList(SingleStreamBlock() for _ in range(single_depth))
        self.final_layer = FinalLayer()

    def unpatchify(self, x, grid):
        x = x.unflatten(2, (in_channels, patch_t, patch_h, patch_w)).unflatten(1, grid)
        x = x.permute(0, 4, 1, 5, 2, 6, 3, 7)
        return x.flatten(6, 7).flatten(4, 5).flatten(2, 3)

    def forward(self, x, t, text, text_mask, text2, cos, sin):
        grid = (x.shape[2] // patch_t, x.shape[3] // patch_h, x.shape[4] // patch_w)
        vec = self.time_in(t) + self.vector_in(text2)
        img = self.img_in(x)
        txt = self.txt_in(text, t)
        image_tokens = img.shape[1]
        mask = same_sequence_mask(text_mask, image_tokens)
        for block in self.double_blocks:
            img, txt = block(img, txt, vec, mask, cos, sin)
        both = torch.cat((img, txt), dim=1)
        for block in self.single_blocks:
            both = block(both, vec, image_tokens, mask, cos, sin)
        return self.unpatchify(self.final_layer(both[:, :image_tokens], vec), grid)


def get_inputs():
    x = torch.randn(batch_size, in_channels, frames, height, width, dtype=DTYPE) * 10
    t = torch.full((batch_size,), 3.0, dtype=torch.float32)
    text = torch.randn(batch_size, text_tokens, text_size, dtype=DTYPE)
    text_mask = torch.ones(batch_size, text_tokens, dtype=torch.float32)
    text2 = torch.randn(batch_size, vector_size, dtype=DTYPE)
    tokens = (frames // patch_t) * (height // patch_h) * (width // patch_w)
    exponents = torch.arange(0, head_size, 2, dtype=torch.float32) / head_size
    positions = torch.arange(tokens, dtype=torch.float32)
    angles = torch.outer(positions, 1.0 / rope_theta**exponents)
    angles = torch.cat((angles, angles), dim=1)
    return [x, t, text, text_mask, text2, angles.cos(), angles.sin()]


def get_init_inputs():
    return []

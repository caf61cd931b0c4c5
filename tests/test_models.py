# SPDX-License-Identifier: MIT
"""A tiny Llama and a tiny BERT, trained in bfloat16 by PyTorch and by this package's operators.

Both trainings differ only by rounding. How far rounding makes runs diverge is measured: PyTorch trains each model with several
orders of operations, and ours may be no further from PyTorch's runs than twice the distance of those from each other.
"""

import contextlib
import itertools
import types

import pytest
import torch
import torch.nn.functional as F
import transformers
from transformers.models.llama import modeling_llama

import hipkittens

TARGETS = ("gfx942", "gfx950")
BF16 = torch.bfloat16
STEPS = 30


def llama(implementation):
    config = transformers.LlamaConfig(
        vocab_size=61, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.1, attn_implementation=implementation,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def bert(implementation):
    config = transformers.BertConfig(
        vocab_size=61, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, initializer_range=0.1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        attn_implementation=implementation,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config)


def batches(model):
    """Sequences that count up by their own step, so that there is something to learn; BERT's are padded."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        start, step = (torch.randint(1, 20, (4, 1), generator=generator) for _ in range(2))
        tokens = 1 + (start + step * torch.arange(33)) % 12
        if model is llama:
            yield {"input_ids": tokens, "labels": tokens}
            continue
        lengths = torch.randint(5, 34, (4, 1), generator=generator)
        real = torch.arange(33) < lengths
        masked = real & (torch.rand(4, 33, generator=generator) < 0.3)
        masked[:, 1] = True
        yield {
            "input_ids": tokens.masked_fill(masked, 60).masked_fill(~real, 0),
            "attention_mask": real.long(),
            "labels": tokens.masked_fill(~masked, -100),
        }


def train(model, implementation, change=contextlib.nullcontext):
    """Losses of all steps, and the final parameters."""
    torch.manual_seed(0)
    network = model(implementation).to(BF16).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    losses = []
    with change(network):
        for batch in batches(model):
            loss = network(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
    return torch.tensor(losses), torch.cat(
        [value.detach().double().flatten() for value in network.parameters()]
    )


@contextlib.contextmanager
def our_operators(network, calls=None, scale_error=1.0):
    """The network with every linear layer, norm, rotation and attention replaced by this package's."""
    calls = {} if calls is None else calls

    def counted(name, function):
        def call(*arguments, **options):
            calls[name] = calls.get(name, 0) + 1
            return function(*arguments, **options)

        return call

    linear, layer_norm = counted("linear", hipkittens.linear), counted("layer_norm", hipkittens.layer_norm)
    rms_norm, rotary_qk = counted("rms_norm", hipkittens.rms_norm), counted("rotary_qk", hipkittens.rotary_qk)
    attention = counted("attention", hipkittens.attention)
    attention_varlen = counted("attention_varlen", hipkittens.attention_varlen)

    def forward_linear(self, x):
        return linear(x, self.weight, self.bias)

    def forward_layer_norm(self, x):
        return layer_norm(x, self.weight, self.bias, self.eps)

    def forward_rms_norm(self, x):
        return rms_norm(x, self.weight, self.variance_epsilon)

    for module in network.modules():
        for kind, forward in (
            (torch.nn.Linear, forward_linear),
            (torch.nn.LayerNorm, forward_layer_norm),
            (modeling_llama.LlamaRMSNorm, forward_rms_norm),
        ):
            if isinstance(module, kind):
                module.forward = types.MethodType(forward, module)

    def rotate(q, k, cos, sin, position_ids=None, unsqueeze_dim=1):
        assert unsqueeze_dim == 1 and torch.equal(cos, cos[:1].expand_as(cos))
        half = cos.shape[-1] // 2
        return rotary_qk(q, k, cos[0, :, :half], sin[0, :, :half], layout="bhnd")

    def attend(
        query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
    ):
        scale = (query.shape[-1] ** -0.5 if scale is None else scale) * scale_error
        if attn_mask is None:
            return attention(
                query, key, value, causal=is_causal, scale=scale, dropout_p=dropout_p, layout="bhnd"
            )
        # Padding: the sequences without it, packed.
        seen = attn_mask[:, 0, -1] if attn_mask.dtype == torch.bool else attn_mask[:, 0, -1] == 0
        lengths = seen.sum(-1)
        ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int()
        packed = (tensor.transpose(1, 2)[seen] for tensor in (query, key, value))
        longest = int(lengths.max())
        out = attention_varlen(*packed, ends, ends, longest, longest, scale=scale, dropout_p=dropout_p)
        whole = out.new_zeros(query.transpose(1, 2).shape)
        return whole.masked_scatter(seen[..., None, None], out).transpose(1, 2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modeling_llama, "apply_rotary_pos_emb", rotate)
        patch.setattr(F, "scaled_dot_product_attention", attend)
        yield


@contextlib.contextmanager
def in_float32(network):
    """Another summation order in PyTorch: products and norms in float32, rounded once, and its own RMSNorm."""

    def forward(self, x):
        if isinstance(self, torch.nn.Linear):
            bias = None if self.bias is None else self.bias.float()
            return F.linear(x.float(), self.weight.float(), bias).to(x.dtype)
        if isinstance(self, torch.nn.LayerNorm):
            wide = (self.weight.float(), self.bias.float(), self.eps)
            return F.layer_norm(x.float(), self.normalized_shape, *wide).to(x.dtype)
        return F.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)

    for module in network.modules():
        if isinstance(module, (torch.nn.Linear, torch.nn.LayerNorm, modeling_llama.LlamaRMSNorm)):
            module.forward = types.MethodType(forward, module)
    yield


def distances(one, other):
    """RMS difference of the losses, and of the parameters relative to their size."""
    losses = (one[0] - other[0]).square().mean().sqrt().item()
    return losses, ((one[1] - other[1]).norm() / other[1].norm()).item()


@pytest.fixture(scope="module", params=[llama, bert], ids=["llama", "bert"])
def trained(request):
    """A model, PyTorch's runs of it, and the largest distance between those runs."""
    model = request.param
    runs = [train(model, "eager"), train(model, "sdpa"), train(model, "sdpa", in_float32)]
    noise = [
        max(pair)
        for pair in zip(*(distances(*pair) for pair in itertools.combinations(runs, 2)), strict=True)
    ]
    assert all(value > 0 for value in noise)
    assert runs[0][0][-5:].mean() < runs[0][0][:5].mean() - 0.1  # it learns
    return model, runs, noise


def furthest_over_noise(ours, runs, noise):
    return max(
        distance / limit for run in runs for distance, limit in zip(distances(ours, run), noise, strict=True)
    )


@pytest.mark.parametrize("target", TARGETS)
def test_training_agrees_with_pytorch(trained, target):
    model, runs, noise = trained
    calls = {}
    with hipkittens.simulate(target, threads=1):
        ours = train(model, "sdpa", lambda network: our_operators(network, calls))
    layers = 2
    expected = (
        {"linear": 7 * layers + 1, "rms_norm": 2 * layers + 1, "rotary_qk": layers, "attention": layers}
        if model is llama
        else {"linear": 6 * layers + 2, "layer_norm": 2 * layers + 2, "attention_varlen": layers}
    )
    assert calls == {name: count * STEPS for name, count in expected.items()}
    ratio = furthest_over_noise(ours, runs, noise)
    print(
        f"{model.__name__} {target}: {ratio:.2f} of the noise (losses {noise[0]:.2g}, parameters {noise[1]:.2g})"
    )
    assert ratio <= 2


def test_the_noise_is_below_a_wrong_scale(trained):
    model, runs, noise = trained
    with hipkittens.simulate("gfx950", threads=1):
        ours = train(model, "sdpa", lambda network: our_operators(network, scale_error=1.5))
    assert furthest_over_noise(ours, runs, noise) > 2

# SPDX-License-Identifier: MIT
"""Small models of Transformers from configurations, with random weights, and how far their results are from float64."""

import copy
import re

import torch
import transformers

from hipkittens._accuracy import BAR, compare, mean_of

BF16 = torch.bfloat16
VOCABULARY = 61
TRANSFORMERS_5 = int(transformers.__version__.split(".")[0]) >= 5

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}


def _decoder(config_class, **more):
    return lambda: transformers.AutoModelForCausalLM.from_config(config_class(**{**SIZES, **more}))


def _bert():
    sizes = {name: value for name, value in SIZES.items() if name != "num_key_value_heads"}
    config = transformers.BertConfig(
        **sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="eager"
    )
    return transformers.BertForMaskedLM(config)


def _bart():
    config = transformers.BartConfig(
        vocab_size=VOCABULARY, d_model=64, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=96, decoder_ffn_dim=96,
        encoder_attention_heads=4, decoder_attention_heads=4, max_position_embeddings=64, init_std=0.1, dropout=0.0,
        attention_dropout=0.0, activation_dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, forced_eos_token_id=None,
    )  # fmt: skip
    return transformers.BartForConditionalGeneration(config)


MODELS = {
    "llama": _decoder(transformers.LlamaConfig),
    "qwen2": _decoder(transformers.Qwen2Config),
    "qwen3": _decoder(transformers.Qwen3Config, head_dim=16),
    "gemma": _decoder(transformers.GemmaConfig, head_dim=16),
    "gemma3": _decoder(
        transformers.Gemma3TextConfig, head_dim=16, sliding_window=8, query_pre_attn_scalar=16
    ),
    "mistral": _decoder(transformers.MistralConfig, sliding_window=8),
    "bert": _bert,
    "bart": _bart,
}
# Mixtures of experts.
EXPERT_MODELS = {
    "mixtral": _decoder(transformers.MixtralConfig, num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": _decoder(
        transformers.Qwen3MoeConfig,
        num_experts=6,
        num_experts_per_tok=3,
        moe_intermediate_size=40,
        head_dim=16,
    ),
    "qwen2_moe": _decoder(
        transformers.Qwen2MoeConfig,
        num_experts=6,
        num_experts_per_tok=3,
        moe_intermediate_size=40,
        shared_expert_intermediate_size=48,
    ),
    "olmoe": _decoder(transformers.OlmoeConfig, num_experts=6, num_experts_per_tok=3),
    "deepseek_v3": _decoder(
        transformers.DeepseekV3Config,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=4,
        topk_group=2,
        moe_intermediate_size=40,
        first_k_dense_replace=1,
        q_lora_rank=None,
        kv_lora_rank=32,
        qk_rope_head_dim=16,
        qk_nope_head_dim=16,
        v_head_dim=32,
    ),
    "gpt_oss": _decoder(
        transformers.GptOssConfig, num_local_experts=4, num_experts_per_tok=2, head_dim=16, sliding_window=8
    ),
}
# In Transformers 4 BERT calls scaled_dot_product_attention itself.
WITHOUT_INTERFACE = () if TRANSFORMERS_5 else ("bert",)


def make(name, dtype=BF16):
    """The model with weights determined by its name, in training mode."""
    torch.manual_seed(0)
    model = {**MODELS, **EXPERT_MODELS}[name]()
    for parameter_name, parameter in model.named_parameters():
        if parameter.dim() == 1:  # norms and biases begin as ones and zeros, which hide mistakes
            with torch.no_grad():
                parameter.add_(0.1 * torch.randn_like(parameter))
        assert parameter.is_floating_point(), parameter_name
    return model.to(dtype).train()


def tokens(rows=3, length=24, seed=1):
    return torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def padding(side, rows=3, length=24):
    """A mask with a different number of padding tokens in each row: 0, 5, 10, ..."""
    place, missing = torch.arange(length), 5 * torch.arange(rows)[:, None]
    return (place >= missing if side == "left" else place < length - missing).long()


def run(model, inputs, kept=None):
    """Logits of the unpadded tokens, and the gradients of a loss of them, by name."""
    model.zero_grad(set_to_none=True)
    logits = model(**inputs).logits
    logits = logits if kept is None else logits[kept.bool()]
    # Every logit has its own weight in the loss, so that all gradients are dense.
    generator = torch.Generator().manual_seed(2)
    weights = torch.randn(logits.shape, generator=generator, dtype=torch.float64).to(logits.dtype)
    (logits * weights).sum().backward()
    return {"logits": logits.detach()} | {
        name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None
    }


def twin_in_float64(model):
    """A copy with the same rounded weights that computes in float64, or in float32 where Transformers insists."""
    twin = copy.deepcopy(model).double()
    if model.config.model_type not in WITHOUT_INTERFACE:
        twin.set_attn_implementation("sdpa")  # Transformers' own sums in float32, and hides with -inf
    return twin


def _compared(results):
    experts = {}
    for name, value in _with_biases(results).items():
        experts.setdefault(re.sub(r"\.experts\.\d+\.", ".experts.", name), []).append(value)
    return {
        name: values[0] if len(values) == 1 else torch.cat([value.flatten() for value in values])
        for name, values in experts.items()
    }


def _with_biases(results):
    together = dict(results)
    for name in results:
        weight = name.removesuffix("bias") + "weight"
        if name.endswith(".bias") and weight in results and results[weight].dim() == 2:
            together[weight] = torch.cat((results[weight], together.pop(name)[:, None]), 1)
    return together


def comparisons(ours, runs_of_torch, reference):
    """For the logits and each gradient, by name: our errors next to those of each of PyTorch's runs.

    A bias counts as one more column of its weight: the gradient of a key projection's bias is 0, up to rounding. A layer's
    experts count as one tensor, as in the grouped products: with a few tokens each, the largest error of one expert is a matter of
    chance.
    """
    ours, reference = _compared(ours), _compared(reference)
    runs = [_compared(theirs) for theirs in runs_of_torch]
    return {
        name: [
            compare(ours[name], theirs[name], expected.double(), expected.double().abs().max().item())
            for theirs in runs
        ]
        for name, expected in reference.items()
    }


def worst_ratios(*draws):
    """The largest ratio of our error to PyTorch's, (max, RMS, where), over `comparisons` of one or several draws.

    PyTorch's is the larger error of its runs, which sum in different orders.
    """
    worst = (0.0, 0.0, "")
    for name in draws[0]:
        compared = [mean_of(of_a_run) for of_a_run in zip(*(draw[name] for draw in draws), strict=True)]
        ratios = min(each.ratio_max for each in compared), min(each.ratio_rms for each in compared)
        if max(ratios) > max(worst[:2]):
            worst = (*ratios, name)
    return worst


def runs_of_torch(model, inputs, kept=None):
    """Results of eager and of scaled_dot_product_attention."""
    if model.config.model_type in WITHOUT_INTERFACE:
        return [run(model, inputs, kept)]
    results = []
    for implementation in ("sdpa", "eager"):
        model.set_attn_implementation(implementation)
        results.append(run(model, inputs, kept))
    return results


def within_bar(ratios):
    return max(ratios[:2]) <= BAR


def missed_by_one_error(ratios):
    """As in benchmarks/parity.py: the largest of a few rounding errors is a matter of chance, as eight draws show."""
    return BAR < ratios[0] < 2 * BAR and ratios[1] <= BAR

# SPDX-License-Identifier: MIT
"""Continuous batching in Transformers 4.57 (`generate_batch`, a paged cache) with attn_implementation="hipkittens": the tokens are those
that eager generates for each prompt alone.

Transformers' interface needs three things for this, which the fixtures supply in the place of a program: on a CPU, a number of bytes for
the cache (4.57 subtracts None from a number there); rings of sliding windows that keep the newest keys (`rings`); and for DeepSeek-V3 a
cache whose sizes match its keys and values.
"""

import pytest
import tiny_models
import torch
import transformers
from test_transformers_score_terms import MODELS

import hipkittens
import hipkittens.integrations.transformers
from hipkittens.integrations import _transformers_paged

pytestmark = pytest.mark.skipif(
    tiny_models.TRANSFORMERS_5,
    reason="Transformers 5 takes no other attention for continuous batching than its own and flash-attn's",
)
if not tiny_models.TRANSFORMERS_5:
    from transformers.generation.continuous_batching import cache as pages
    from transformers.generation.continuous_batching import cache_manager, continuous_api

TARGETS = ("gfx942", "gfx950")
PROMPTS = [tiny_models.tokens(1, length, seed=length)[0].tolist() for length in (3, 11, 6)]
NEW = 12  # beyond the windows of 8


def right_reads(allocator):
    """Reads of the window's newest keys: 4.57.3 starts one position too early, and misses the last."""
    theirs = allocator.get_read_indices

    def read(self, request_id, past_length, query_length):
        return theirs(self, request_id, past_length + (past_length >= self.sliding_window), query_length)

    return read


def right_writes(allocator):
    """Writes of each key at its position in the ring: 4.57.3 writes the last keys of a prompt longer than a window to the start of the
    ring."""
    theirs = allocator.get_write_indices

    def write(self, request_id, past_length, query_length):
        left_out = max(query_length - self.sliding_window, 0)
        places = theirs(self, request_id, past_length + left_out, query_length - left_out)
        return [-1] * left_out + places

    return write


@pytest.fixture
def memory(monkeypatch):
    monkeypatch.setattr(
        pages.PagedAttentionMemoryHandler, "get_available_memory", staticmethod(lambda share: 1 << 30)
    )


@pytest.fixture
def rings(monkeypatch):
    """Fix the rings as Transformers 5.22 does."""
    allocator = cache_manager.SlidingAttentionCacheAllocator
    for name, right in (("get_read_indices", right_reads), ("get_write_indices", right_writes)):
        monkeypatch.setattr(allocator, name, right(allocator))


@pytest.fixture
def sizes_of_deepseek(monkeypatch):
    """Separate sizes of keys and of values: Transformers' cache has one size, which it takes from head_dim, the rotary part's."""
    whole = continuous_api.PagedAttentionCache

    class Cache(whole):
        def __init__(self, config, *given, **options):
            super().__init__(config, *given, **options)
            if config.model_type == "deepseek_v3":
                places = self.cache_shape[:2]
                self.key_cache, self.value_cache = (
                    [each.new_empty(*places, size) for each in self.key_cache]
                    for size in (config.qk_head_dim, config.v_head_dim)
                )

    monkeypatch.setattr(continuous_api, "PagedAttentionCache", Cache)


def model_of(name, size):
    """A model in float16 with logits far enough apart that rounding does not change the largest."""
    config = MODELS[name]()
    if name == "deepseek_v3":
        config.qk_nope_head_dim = size - config.qk_rope_head_dim
        config.qk_head_dim, config.v_head_dim = size, {64: 64}.get(size, 24)
    else:
        config.head_dim = size
    config.final_logit_softcapping = None  # under which large logits are equal
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).half().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                torch.nn.init.normal_(parameter)
            if "q_proj" in parameter_name:
                parameter.mul_(6)  # so that softcaps and sinks say something
        if model.lm_head.weight is not model.model.embed_tokens.weight:
            model.lm_head.weight.mul_(8)
    return model


def alone(model, prompt):
    options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    ids = torch.tensor([prompt])
    return model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt) :].tolist()


def together(model, tokens_at_once=64):
    """Tokens from continuous batching, in blocks of 4 keys."""
    config = transformers.GenerationConfig(
        max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    config.num_blocks, config.block_size, config.max_batch_tokens = 32, 4, tokens_at_once
    manager = model.init_continuous_batching(generation_config=config)
    manager.start()
    try:
        names = [manager.add_request(prompt) for prompt in PROMPTS]
        found = {}
        while len(found) < len(names):
            result = manager.get_result(timeout=60)
            assert result is not None and result.error is None, result
            if result.status.name == "FINISHED":
                found[result.request_id] = result.generated_tokens
    finally:
        manager.stop(block=True, timeout=60)
    return [found[name] for name in names]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [64, 56])
@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_eager_s(memory, rings, sizes_of_deepseek, monkeypatch, name, size, target):
    """Also with prompts in chunks. In layers without a window, heads of 64 features are read in place."""
    model = model_of(name, size)
    model.set_attn_implementation("eager")
    wanted = [alone(model, prompt) for prompt in PROMPTS]
    assert len({tuple(tokens) for tokens in wanted}) == len(PROMPTS)
    read_in_place = []
    theirs = _transformers_paged.attention_paged

    def counted(*given, **options):
        read_in_place.append(given)
        return theirs(*given, **options)

    monkeypatch.setattr(_transformers_paged, "attention_paged", counted)
    model.set_attn_implementation("hipkittens")
    with hipkittens.simulate(target, checks="all", threads=1) as run:
        assert together(model) == wanted
        assert together(model, tokens_at_once=7) == wanted
    assert not run.findings
    assert bool(read_in_place) == (size == 64)


def test_the_tokens_depend_on_what_makes_the_models_different(memory, rings, sizes_of_deepseek):
    """Softcap, sinks and windows: without them eager generates other tokens, so that the test above would detect their loss."""
    for name, without in (
        ("gemma2", "attn_logit_softcapping"),
        ("gpt_oss", "sinks"),
        ("gpt_oss", "sliding_window"),
    ):
        model = model_of(name, 64)
        model.set_attn_implementation("eager")
        wanted = [alone(model, prompt) for prompt in PROMPTS]
        for layer in model.model.layers:
            if without == "sinks":
                torch.nn.init.constant_(layer.self_attn.sinks, -100.0)
            layer.self_attn.sliding_window = (
                layer.self_attn.sliding_window if without != "sliding_window" else None
            )
        setattr(model.config, without, 1000 if without == "sliding_window" else None)
        for layer in model.model.layers:
            if without == "attn_logit_softcapping":
                layer.self_attn.attn_logit_softcapping = None
        assert [alone(model, prompt) for prompt in PROMPTS] != wanted, (name, without)


def test_another_interface_is_refused():
    x = torch.zeros(1, 2, 3, 64, dtype=torch.bfloat16)
    with pytest.raises(
        NotImplementedError,
        match="cache is given without read_index, write_index, cu_seq_lens_k, max_seqlen_q",
    ):
        hipkittens.integrations.transformers.attention_forward(
            torch.nn.Module(),
            x,
            x,
            x,
            None,
            cache=object(),
            cu_seq_lens_q=torch.tensor([0, 3]),
            max_seqlen_k=3,
        )


def test_rings_of_4_57_lose_the_newest_key():
    """The defect that `right_reads` and `right_writes` fix: which positions a token with `past` predecessors reads, with a window of 8."""
    window = 8

    def read(reads, writes, first, past):
        """Positions read, after a prompt of `first` tokens and then token by token."""
        allocator = cache_manager.SlidingAttentionCacheAllocator(0, 4, window)
        allocator.allocate_blocks(2, "a", pages.deque(range(2)))
        held = {}
        for begin, count in [(0, first), *((at, 1) for at in range(first, past))]:
            places = writes(allocator, "a", begin, count)
            held |= {place: begin + at for at, place in enumerate(places) if place != -1}
        return sorted(held[place] for place in reads(allocator, "a", past, 1) if place != -1)

    allocator = cache_manager.SlidingAttentionCacheAllocator
    theirs = allocator.get_read_indices, allocator.get_write_indices
    mended = right_reads(allocator), right_writes(allocator)
    for first, past in ((3, 5), (3, 8), (3, 13), (11, 11), (11, 15)):
        seen = list(range(max(past - window + 1, 0), past))
        assert read(*mended, first, past) == seen
        assert (read(*theirs, first, past) == seen) == (past < window)

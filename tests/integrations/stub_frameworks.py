# SPDX-License-Identifier: MIT
"""Stubs of other frameworks' published interfaces, as far as the integrations use them, with the frameworks' own names and semantics.

Megatron Core   https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/transformer/dot_product_attention.py
TorchTitan      https://github.com/pytorch/torchtitan/blob/main/torchtitan/overrides/README.md
vLLM            https://github.com/vllm-project/vllm/blob/main/vllm/model_executor/custom_op.py and v1/attention/backend.py
SGLang          https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/plugins/hook_registry.py
"""

import collections
import contextlib
import dataclasses
import enum
import functools
import pkgutil
import sys
import types
import typing

import torch


def module(name, **contents):
    made = types.ModuleType(name)
    vars(made).update(contents)
    return made


def install(monkeypatch, *modules):
    """Make the modules importable, with empty packages above them."""
    for made in modules:
        parts = made.__name__.split(".")
        for end in range(1, len(parts)):
            parent = ".".join(parts[:end])
            if parent not in sys.modules:
                monkeypatch.setitem(sys.modules, parent, module(parent, __path__=[]))
        monkeypatch.setitem(sys.modules, made.__name__, made)
        if len(parts) > 1:
            setattr(sys.modules[".".join(parts[:-1])], parts[-1], made)


class AttnMaskType(enum.Enum):
    padding = 1
    causal = 2
    no_mask = 3
    padding_causal = 4
    arbitrary = 5


class RngTracker:
    forks = 0

    @contextlib.contextmanager
    def fork(self):
        RngTracker.forks += 1
        yield


class MegatronModule(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config


def megatron(monkeypatch):
    def is_layer_window_attention(window_size, skip_freq, layer_number):
        return window_size is not None and (not skip_freq or layer_number % skip_freq != 0)

    install(
        monkeypatch,
        module("megatron.core.tensor_parallel", get_cuda_rng_tracker=RngTracker),
        module("megatron.core.transformer.module", MegatronModule=MegatronModule),
        module("megatron.core.transformer.utils", is_layer_window_attention=is_layer_window_attention),
    )


def torchtitan(monkeypatch):
    """Returns the arguments passed to @override."""
    registered = []

    def override(*, target, description="", exact=False, fqns=None):
        def decorator(factory):
            registered.append((target, exact, factory))
            return factory

        return decorator

    def derive(config, kind, **deltas):
        made = kind(**deltas)
        for field in dataclasses.fields(config):
            if field.name not in deltas and hasattr(config, field.name):
                setattr(made, field.name, getattr(config, field.name))
        return made

    class RMSNorm(torch.nn.RMSNorm):
        @dataclasses.dataclass(kw_only=True, slots=True)
        class Config:
            normalized_shape: int = dataclasses.field(init=False)
            eps: float = 1e-5
            elementwise_affine: bool = True

        def __init__(self, config):
            super().__init__(
                config.normalized_shape, eps=config.eps, elementwise_affine=config.elementwise_affine
            )

    install(
        monkeypatch,
        module("torchtitan.config", override=override, derive=derive),
        module("torchtitan.models.common", RMSNorm=RMSNorm),
    )
    return registered


def vllm(monkeypatch):
    """Returns the registry of replaced classes."""
    replaced = {}

    class CustomOp(torch.nn.Module):
        def __new__(cls, *args, **kwargs):
            return super().__new__(replaced.get(cls.__name__, cls))

        @classmethod
        def register_oot(cls, name):
            def decorator(kind):
                assert name not in replaced, f"Duplicate op name: {name}"
                replaced[name], kind.name = kind, name
                return kind

            return decorator

        def forward(self, *args, **kwargs):
            return self.forward_hip(*args, **kwargs)

        def forward_hip(self, *args, **kwargs):
            return self.forward_cuda(*args, **kwargs)

    class RMSNorm(CustomOp):
        name = "rms_norm"

        def __init__(self, hidden_size, eps=1e-6, var_hidden_size=None, has_weight=True, dtype=None):
            super().__init__()
            self.variance_epsilon, self.has_weight = eps, has_weight
            self.variance_size_override = None if var_hidden_size == hidden_size else var_hidden_size
            self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=dtype))

        def forward_native(self, x, residual=None):
            wide = x.float() if residual is None else x.float() + residual.float()
            seen = wide[..., : self.variance_size_override]
            out = wide * torch.rsqrt(seen.square().mean(-1, keepdim=True) + self.variance_epsilon)
            out = out.to(x.dtype) * self.weight
            return out if residual is None else (out, wide.to(x.dtype))

    class RotaryEmbedding(CustomOp):
        name = "rotary_embedding"

        def __init__(self, head_size, rotary_dim, max_position_embeddings, base, is_neox_style, dtype):
            super().__init__()
            self.head_size, self.rotary_dim, self.is_neox_style = head_size, rotary_dim, is_neox_style
            rates = base ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float) / rotary_dim)
            angles = torch.outer(torch.arange(max_position_embeddings, dtype=torch.float), rates)
            self.register_buffer("cos_sin_cache", torch.cat((angles.cos(), angles.sin()), -1).to(dtype))

        def forward_native(self, positions, query, key=None):
            cos, sin = self.cos_sin_cache[positions.flatten()].chunk(2, -1)

            def turn(x):
                whole = x.view(positions.numel(), -1, self.head_size)
                front, rest = whole[..., : self.rotary_dim], whole[..., self.rotary_dim :]
                if self.is_neox_style:
                    a, b = front.chunk(2, -1)
                else:
                    a, b = front[..., ::2], front[..., 1::2]
                c, s = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
                turned = a * c - b * s, b * c + a * s
                front = torch.cat(turned, -1) if self.is_neox_style else torch.stack(turned, -1).flatten(-2)
                return torch.cat((front, rest), -1).reshape(x.shape)

            return turn(query), None if key is None else turn(key)

    # They have seen another test's stubs.
    for name in ("_vllm_switches", "vllm_experts", "vllm_linear", "vllm_mla", "vllm_scaled_experts"):
        monkeypatch.delitem(sys.modules, f"hipkittens.integrations.{name}", raising=False)
    vllm_attention(monkeypatch)
    vllm_experts(monkeypatch, CustomOp)
    vllm_scaled_experts(monkeypatch)
    vllm_linear(monkeypatch)
    vllm_mla(monkeypatch)
    install(
        monkeypatch,
        module("vllm.model_executor.custom_op", CustomOp=CustomOp),
        module("vllm.model_executor.layers.layernorm", RMSNorm=RMSNorm),
        module("vllm.model_executor.layers.rotary_embedding", RotaryEmbedding=RotaryEmbedding),
    )
    return replaced, RMSNorm, RotaryEmbedding


def vllm_attention(monkeypatch, **switches):
    """Returns the paths of the registered backends, without those under names of their own. switches: those of vllm.envs."""
    registered, added = {}, {}

    class AttentionBackendEnum(enum.Enum):
        CUSTOM = None

        def is_overridden(self):
            return self in registered

        def get_path(self):
            return registered[self]

        @classmethod
        def register(cls, name, path):
            added[name] = path

    class Generic:
        def __class_getitem__(cls, of):
            return cls

    class AttentionMetadataBuilder(Generic):
        def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
            self.kv_cache_spec = kv_cache_spec

    class AttentionType(str, enum.Enum):
        DECODER, ENCODER, ENCODER_ONLY, ENCODER_DECODER = (
            "decoder",
            "encoder",
            "encoder_only",
            "encoder_decoder",
        )

    install(
        monkeypatch,
        module("vllm.envs", **({"VLLM_BATCH_INVARIANT": False} | switches)),
        module(
            "vllm.v1.attention.backends.registry",
            AttentionBackendEnum=AttentionBackendEnum,
            register_backend=registered.__setitem__,
        ),
        module(
            "vllm.v1.attention.backend",
            AttentionBackend=type("AttentionBackend", (), {}),
            AttentionCGSupport=enum.Enum("AttentionCGSupport", ["UNIFORM_BATCH"]),
            AttentionImpl=type("AttentionImpl", (Generic,), {}),
            AttentionMetadata=type("AttentionMetadata", (), {}),
            AttentionMetadataBuilder=AttentionMetadataBuilder,
            AttentionType=AttentionType,
            MultipleOf=dataclasses.make_dataclass("MultipleOf", ["base"]),
        ),
    )
    return registered


def vllm_experts(monkeypatch, custom_op):
    """What importing and registering the integration needs, and the selection of experts."""
    package = "vllm.model_executor.layers.fused_moe"
    gates = {
        "SILU": "silu",
        "GELU": "gelu",
        "GELU_TANH": "gelu_tanh",
        "SWIGLUOAI": "swigluoai",
        "RELU2": "relu2",
    }
    activations = enum.Enum("MoEActivation", gates)

    class FusedMoEExpertsModular:
        def __init__(self, moe_config=None, quant_config=None):
            self.moe_config, self.quant_config = moe_config, quant_config

        @staticmethod
        def is_supported_config(cls, moe_config, weight_key=None, activation_key=None, *others):
            supported = cls._supports_current_device() and cls._supports_quant_scheme(
                weight_key, activation_key
            )
            return supported and cls._supports_activation(moe_config.activation), None

    class UnquantizedFusedMoEMethod(custom_op):
        name = "unquantized_fused_moe"

        def __init__(self, moe):
            super().__init__()
            self.unquantized_backend = self.experts_cls = "vLLM's"

        def enabled(self):
            return f"+{self.name}" in self.custom_ops

        custom_ops = ("+unquantized_fused_moe",)

    install(
        monkeypatch,
        module(
            "vllm.platforms",
            current_platform=types.SimpleNamespace(get_device_capability=lambda: None, _enum="ROCM"),
        ),
        module(f"{package}.activation", MoEActivation=activations),
        module(
            f"{package}.modular_kernel",
            FusedMoEActivationFormat=enum.Enum("FusedMoEActivationFormat", ["Standard"]),
            FusedMoEExpertsModular=FusedMoEExpertsModular,
        ),
        module(f"{package}.oracle.unquantized", UnquantizedMoeBackend=enum.Enum("Backend", ["TRITON"])),
        module(f"{package}.topk_weight_and_reduce", TopKWeightAndReduceNoOP=type("NoOP", (), {})),
        module(
            f"{package}.unquantized_fused_moe_method", UnquantizedFusedMoEMethod=UnquantizedFusedMoEMethod
        ),
    )


def vllm_scaled_experts(monkeypatch):
    """Schemes by name, and selections that return nothing. Returns the compilation options, which enable the names in `custom_ops`."""
    package, quantization = "vllm.model_executor.layers.fused_moe", "vllm.model_executor.layers.quantization"
    options = types.SimpleNamespace(
        custom_ops=set(), enabled_custom_ops=collections.Counter(), disabled_custom_ops=collections.Counter()
    )
    options.is_custom_op_enabled = lambda name: name in options.custom_ops
    names = (
        "kFp8Dynamic128Sym", "kFp8DynamicTensorSym", "kFp8DynamicTokenSym", "kFp8Static128BlockSym", "kFp8StaticChannelSym",
        "kFp8StaticTensorSym", "kInt8DynamicTokenSym", "kInt8StaticChannelSym", "kMxfp4Dynamic", "kMxfp4Static", "kMxfp8Dynamic",
    )  # fmt: skip

    def select_fp8_moe_backend(config, weight_key, activation_key, allow_vllm_cutlass=False):
        return "vLLM's", None

    def select_int8_moe_backend(config, weight_key=None, activation_key=None):
        return "vLLM's", None

    def select_mxfp4_moe_backend(config, activation_key=None):
        return "vLLM's", None

    def replace_parameter(layer, name, value):
        setattr(layer, name, torch.nn.Parameter(value, requires_grad=False))

    install(
        monkeypatch,
        module(
            "vllm.config", get_current_vllm_config=lambda: types.SimpleNamespace(compilation_config=options)
        ),
        module(
            f"{package}.oracle.fp8",
            Fp8MoeBackend=enum.Enum("Fp8MoeBackend", ["TRITON"]),
            select_fp8_moe_backend=select_fp8_moe_backend,
        ),
        module(
            f"{package}.oracle.int8",
            Int8MoeBackend=enum.Enum("Int8MoeBackend", ["TRITON"]),
            select_int8_moe_backend=select_int8_moe_backend,
        ),
        module(
            f"{package}.oracle.mxfp4",
            Mxfp4MoeBackend=enum.Enum("Mxfp4MoeBackend", ["EMULATION"]),
            select_mxfp4_moe_backend=select_mxfp4_moe_backend,
            _resolve_activation_key=lambda key: key,
        ),
        # Methods import the selection by its name.
        module(f"{quantization}.fp8", select_fp8_moe_backend=select_fp8_moe_backend),
        module(f"{quantization}.utils.quant_utils", **{name: name for name in names}),
        module("vllm.model_executor.utils", replace_parameter=replace_parameter),
    )
    return options


def vllm_linear(monkeypatch):
    """Base classes that call what a kernel implements, and empty lists of kernels. Returns the module with the lists."""
    package = "vllm.model_executor.kernels.linear"

    class Kernel:
        def __init__(self, config, layer_param_names=()):
            assert self.can_implement(config)[0] and self.is_supported()[0]
            self.config, self.layer_param_names = config, layer_param_names

        def process_weights_after_loading(self, layer):
            pass

        def _get_layer_params(self, layer):
            return tuple(getattr(layer, name, None) for name in self.layer_param_names)

    class BlockKernel(Kernel):
        def _get_layer_params(self, layer):
            return types.SimpleNamespace(
                block_scale=layer.weight_scale_inv, block_scale_attr="weight_scale_inv"
            )

    lists = {f"_POSSIBLE_{kind}_KERNELS": {} for kind in ("FP8", "FP8_BLOCK", "INT8", "MXFP4", "MXFP8")}
    made = module(
        package, __path__=[], FP8ScaledMMLinearKernel=Kernel, Int8ScaledMMLinearKernel=Kernel, **lists
    )
    install(
        monkeypatch,
        made,
        module(f"{package}.mxfp4.base", MxFp4LinearKernel=type("MxFp4LinearKernel", (Kernel,), {})),
        module(
            f"{package}.mxfp8.Mxfp8LinearKernel", Mxfp8LinearKernel=type("Mxfp8LinearKernel", (Kernel,), {})
        ),
        module(f"{package}.scaled_mm.BlockScaledMMLinearKernel", Fp8BlockScaledMMLinearKernel=BlockKernel),
        module(
            "vllm.model_executor.layers.quantization.utils.w8a8_utils",
            convert_to_channelwise=lambda scale, widths: scale.repeat_interleave(torch.tensor(widths))[
                :, None
            ],
        ),
    )
    return made


def vllm_mla(monkeypatch):
    """Base classes without behavior. Returns what is registered as prefill backends, by name."""
    prefills = {}

    class Impl:
        def __class_getitem__(cls, of):
            return cls

        def __init__(
            self, num_heads, head_size, scale, num_kv_heads, slopes, window, kv_cache_dtype, *others, **more
        ):
            self.scale, self.kv_cache_dtype, self.dcp_world_size = scale, kv_cache_dtype, more.pop("ranks", 1)

    class PrefillNames:
        __members__ = prefills
        register = prefills.__setitem__

    generic = type("Generic", (), {"__class_getitem__": classmethod(lambda cls, of: cls)})
    install(
        monkeypatch,
        module(
            "vllm.model_executor.layers.attention.mla_attention",
            MLACommonBackend=type("MLACommonBackend", (), {}),
            MLACommonImpl=Impl,
            MLACommonMetadata=type("MLACommonMetadata", (), {}),
            MLACommonMetadataBuilder=generic,
            QueryLenSupport=enum.Enum("QueryLenSupport", ["UNIFORM"]),
        ),
        module(
            "vllm.v1.attention.backends.mla.prefill.base", MLAPrefillBackend=type("MLAPrefillBackend", (), {})
        ),
        module("vllm.v1.attention.backends.mla.prefill.registry", MLAPrefillBackendEnum=PrefillNames),
    )
    return prefills


def sglang(monkeypatch):
    """The registry of hooks, which installs them, and the norm that they apply to; and what importing the attention backend needs."""

    class HookType(enum.Enum):
        AROUND = "around"

    class HookRegistry:
        hooks: typing.ClassVar[dict] = {}

        @classmethod
        def register(cls, target, hook, hook_type):
            assert hook_type is HookType.AROUND and target not in cls.hooks
            cls.hooks[target] = hook

        @classmethod
        def apply_hooks(cls):
            for target, hook in cls.hooks.items():
                owner, name = target.rsplit(".", 1)
                owner = pkgutil.resolve_name(owner)
                original = getattr(owner, name)
                setattr(owner, name, functools.partialmethod(wrapped, hook, original))

    def wrapped(self, hook, original, *args, **kwargs):
        return hook(original, self, *args, **kwargs)

    class RMSNorm(torch.nn.Module):
        def __init__(self, hidden_size, eps=1e-6, var_hidden_size=None, fp32_residual=False, aiter=False):
            super().__init__()
            self.has_weight, self.weight = True, torch.nn.Parameter(torch.ones(hidden_size))
            self.variance_epsilon, self.fp32_residual = eps, fp32_residual
            self.variance_size_override = None if var_hidden_size == hidden_size else var_hidden_size
            self._forward_method = self.forward_aiter if aiter else self.forward_hip
            self.calls = 0

        def forward(self, *args, **kwargs):
            return self._forward_method(*args, **kwargs)

        def forward_native(self, x, residual=None, post_residual_addition=None):
            self.calls += 1
            wide = x.float() if residual is None else x.float() + residual.float()
            if post_residual_addition is not None:
                wide += post_residual_addition.float()
            seen = wide[..., : self.variance_size_override]
            out = wide * torch.rsqrt(seen.square().mean(-1, keepdim=True) + self.variance_epsilon)
            out = (out * self.weight).to(x.dtype)
            return out if residual is None else (out, wide.to(x.dtype))

        def forward_hip(self, *args, **kwargs):
            return self.forward_native(*args, **kwargs)

        def forward_aiter(self, *args, **kwargs):
            return self.forward_native(*args, **kwargs)

    for name in ("sglang_attention", "sglang_mla"):
        monkeypatch.delitem(sys.modules, f"hipkittens.integrations.{name}", raising=False)
    backends = {}

    class AttentionBackend:
        def init_forward_metadata(self, forward_batch):
            self.init_forward_metadata_in_graph(forward_batch)

    install(
        monkeypatch,
        module("sglang.srt.arg_groups.choices", ATTENTION_BACKEND_CHOICES=["triton"]),
        module(
            "sglang.srt.layers.attention.attention_registry",
            register_attention_backend=lambda name: functools.partial(backends.__setitem__, name),
            ATTENTION_BACKENDS=backends,
        ),
        module("sglang.srt.layers.attention.base_attn_backend", AttentionBackend=AttentionBackend),
        module(
            "sglang.srt.layers.radix_attention",
            AttentionType=enum.Enum("AttentionType", ["DECODER", "DECODER_BIDIRECTIONAL", "ENCODER_ONLY"]),
        ),
        module("sglang.srt.mem_cache.memory_pool", KVWriteLoc=lambda loc, swa_loc: loc),
        module("sglang.srt.plugins.hook_registry", HookRegistry=HookRegistry, HookType=HookType),
        module("sglang.srt.layers.layernorm", RMSNorm=RMSNorm),
        module(
            "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe",
            fused_experts=lambda *args, **kwargs: ("theirs", args, kwargs),
        ),
        module(
            "sglang.srt.layers.quantization.fp8_utils",
            triton_w8a8_block_fp8_linear=lambda *args, **kwargs: ("theirs", args, kwargs),
            apply_fp8_linear=lambda *args, **kwargs: ("theirs", args, kwargs),
        ),
    )
    return HookRegistry, RMSNorm

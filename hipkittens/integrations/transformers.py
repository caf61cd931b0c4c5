# SPDX-License-Identifier: MIT
"""Hugging Face Transformers, 4.57 and 5, on this package's kernels.

    import hipkittens.integrations.transformers
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16, attn_implementation="hipkittens")
    hipkittens.patch(model)          # norms and rotary embeddings of this model too; hipkittens.unpatch(model) undoes it

Importing this module registers the attention function and its masks under the name "hipkittens". Without the masks Transformers would
silently pass no padding.

For users of Liger: apply_to_llama and similar functions accept the arguments of apply_liger_kernel_to_llama.
"""

from __future__ import annotations

import torch

from .._patch_report import PatchReport
from ..patch import patch
from ._transformers_attention import attention_forward
from ._transformers_classes import ClassPatch
from ._transformers_masks import key_mask
from ._transformers_registration import register

__all__ = [
    "ClassPatch",
    "apply_to_bert",
    "apply_to_gemma",
    "apply_to_gemma2",
    "apply_to_gemma3",
    "apply_to_llama",
    "apply_to_mistral",
    "apply_to_qwen2",
    "apply_to_qwen3",
    "attention_forward",
    "key_mask",
    "register",
]

register()


def _apply(
    function: str,
    families: tuple[str, ...],
    model: torch.nn.Module | None,
    wanted: dict[str, bool],
) -> PatchReport | ClassPatch:
    if model is None:
        return ClassPatch(function, families, norm=wanted["norm"], rotary=wanted["rotary"])
    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if kind not in families:
        raise TypeError(
            f"hipkittens.integrations.transformers.{function}: model is a {kind!r}; allowed: {', '.join(families)}. "
            "hipkittens.patch(model) takes any model"
        )
    report = patch(model, **wanted)
    refused = [row.reason for row in report.left if row.part == "fused_loss"]
    if refused:
        for undo in reversed(report._undo):
            undo()
        raise ValueError(
            f"hipkittens.integrations.transformers.{function}: fused_linear_cross_entropy is True; {refused[0]}"
        )
    return report


class _ApplyTo:
    """One family of models and the function that patches it; subclasses have Liger's argument names."""

    def __init__(self, name: str, title: str, activation: str, family: str | None = None) -> None:
        self.__name__ = self.__qualname__ = f"apply_to_{name}"
        self.__module__ = __name__
        self._families = (family or name,)
        self._activation = activation
        self.__doc__ = f"""hipkittens.patch(model) in Liger's words, for {title}.

        Without a model, the classes of norms and attention modules are replaced for {title} models made from now on, until
        remove() of the result (also a context manager); models that exist do not change. attention and linear concern a
        model that is given: a later one gets its attention by attn_implementation="hipkittens". So do {activation},
        cross_entropy and fused_linear_cross_entropy, by hipkittens.patch: without a model the last raises ValueError.
        """

    def _patch(
        self,
        model: torch.nn.Module | None,
        rope: bool,
        rms_norm: bool,
        attention: bool,
        linear: bool,
        loss: bool,
        fused_loss: bool,
        mlp: bool,
    ) -> PatchReport | ClassPatch:
        if fused_loss and model is None:
            raise ValueError(
                f"hipkittens.integrations.transformers.{self.__name__}: fused_linear_cross_entropy is True and model None; it "
                "replaces the forward of one model: pass a model, or call hipkittens.patch(model, fused_loss=True) on each"
            )
        wanted = {
            "attention": attention,
            "norm": rms_norm,
            "rotary": rope,
            "linear": linear,
            "loss": loss,
            "fused_loss": fused_loss,
            "mlp": mlp,
        }
        return _apply(self.__name__, self._families, model, wanted)

    def __repr__(self) -> str:
        return f"<function {__name__}.{self.__name__}>"


class _WithSwiGLU(_ApplyTo):
    def __call__(
        self,
        rope: bool = True,
        cross_entropy: bool = False,
        fused_linear_cross_entropy: bool = False,
        rms_norm: bool = True,
        swiglu: bool = True,
        model: torch.nn.Module | None = None,
        *,
        attention: bool = True,
        linear: bool = False,
    ) -> PatchReport | ClassPatch:
        return self._patch(
            model, rope, rms_norm, attention, linear, cross_entropy, fused_linear_cross_entropy, swiglu
        )


class _WithGeGLU(_ApplyTo):
    def __call__(
        self,
        rope: bool = True,
        cross_entropy: bool = False,
        fused_linear_cross_entropy: bool = False,
        rms_norm: bool = True,
        geglu: bool = True,
        model: torch.nn.Module | None = None,
        *,
        attention: bool = True,
        linear: bool = False,
    ) -> PatchReport | ClassPatch:
        return self._patch(
            model, rope, rms_norm, attention, linear, cross_entropy, fused_linear_cross_entropy, geglu
        )


apply_to_llama = _WithSwiGLU("llama", "Llama", "swiglu")
apply_to_mistral = _WithSwiGLU("mistral", "Mistral", "swiglu")
apply_to_qwen2 = _WithSwiGLU("qwen2", "Qwen2 and Qwen2.5", "swiglu")
apply_to_qwen3 = _WithSwiGLU("qwen3", "Qwen3", "swiglu")
apply_to_gemma = _WithGeGLU("gemma", "Gemma", "geglu")
apply_to_gemma2 = _WithGeGLU("gemma2", "Gemma 2", "geglu")
apply_to_gemma3 = _WithGeGLU("gemma3", "Gemma 3 (text)", "geglu", "gemma3_text")


def apply_to_bert(
    layer_norm: bool = True,
    model: torch.nn.Module | None = None,
    *,
    attention: bool = True,
    linear: bool = False,
) -> PatchReport:
    """hipkittens.patch(model) for BERT. BERT has no classes of its own that could be replaced for later models, so model is
    required: ValueError without it.
    """
    if model is None:
        raise ValueError(
            "hipkittens.integrations.transformers.apply_to_bert: model is None; BERT's norms are torch.nn.LayerNorm, which "
            "is not replaced for everybody. Pass a model"
        )
    wanted = {
        "attention": attention,
        "norm": layer_norm,
        "rotary": False,
        "linear": linear,
        "mlp": False,
        "loss": False,
    }
    report = _apply("apply_to_bert", ("bert",), model, wanted)
    assert isinstance(report, PatchReport)
    return report

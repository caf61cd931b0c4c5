# SPDX-License-Identifier: MIT
"""Replace the modules of an existing model by this package's kernels: patch, unpatch, and patched as a context manager."""

from __future__ import annotations

import contextlib
import fnmatch
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ._patch_report import PatchReport

_SWITCHES = "_hipkittens_configurations"
_PARTS = ("attention", "linear_attention", "norm", "rotary", "mlp", "moe", "loss", "fused_loss", "linear")


def patch(
    model: torch.nn.Module,
    *,
    attention: bool = True,
    linear_attention: bool = True,
    norm: bool = True,
    rotary: bool = True,
    mlp: bool = True,
    moe: bool = True,
    loss: bool = True,
    fused_loss: bool = False,
    linear: bool = False,
    join_experts: bool = False,
    dtype: torch.dtype | None = None,
    exclude: Iterable[str] = (),
    dry_run: bool = False,
) -> PatchReport:
    """Make this model, and no other, use the kernels of this package; returns what was replaced, and why the rest was not.

    - `attention`: torch.nn.MultiheadAttention, and models of Transformers through its AttentionInterface.
    - `linear_attention`: the gated delta rules and causal convolutions of Transformers' layers: Qwen3-Next, and in Transformers 5 Qwen3.5
      and OLMo Hybrid.
    - `norm`: torch.nn.LayerNorm and RMSNorm, and every module that computes x / rms(x) * weight or * (1 + weight), or the first times
      silu(gate).
    - `rotary`: apply_rotary_pos_emb of Transformers' models.
    - `mlp`: every module that computes down(act(gate) * up), with separate gate and up projections (Llama) or a single one (Phi-3).
    - `moe`: every module whose experts compute what hipkittens.moe does: those of Mixtral, Qwen-MoE, OLMoE, DeepSeek-V3 and gpt-oss in
      Transformers 4. Experts in a list are stacked in every call, and are no longer called themselves.
    - `loss`: ForCausalLMLoss of Transformers' models.
    - `fused_loss`: training with labels computes that loss from the hidden states, by linear_cross_entropy. There are no logits then, and
      the output's are None. For models with Llama's forward, with or without a softcap.
    - `linear`: torch.nn.Linear.
    - `join_experts`: moves the parameters of each replaced list of experts permanently into one contiguous tensor, so that no call has to
      copy them.
    - `dtype`: that of the tensors the model will be called with; by default autocast's, if it is enabled, or that of the parameters. A
      float32 model trained under autocast(dtype=torch.bfloat16) needs dtype=torch.bfloat16.
    - `exclude`: names of modules that are not replaced, with * and ? ("lm_head", "model.layers.0.*").
    - `dry_run`: change nothing.

    `model`'s modules stay the same objects, with their parameters, hooks and names: optimizers, state_dict, tied weights and wrappers are
    not affected. Modules that the kernels cannot compute are left as they are, and the report states why; nothing is ever converted.
    unpatch(model) undoes it. Patch before torch.compile and before FSDP's fully_shard.
    """
    from ._patch_classes import is_replaced
    from ._patch_experts import join_weights, parts_read_by
    from ._patch_report import PatchReport, PatchRow
    from ._patch_rules import judge

    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"hipkittens.patch: model is {type(model).__name__}; it must be a torch.nn.Module")
    if isinstance(exclude, str):
        raise TypeError(f"hipkittens.patch: exclude is a str; it must be a list of names, [{exclude!r}]")
    wanted = dict(
        zip(
            _PARTS,
            (attention, linear_attention, norm, rotary, mlp, moe, loss, fused_loss, linear),
            strict=True,
        )
    )
    for name, value in {**wanted, "join_experts": join_experts}.items():
        if not isinstance(value, bool):
            raise TypeError(f"hipkittens.patch: {name} is {value!r}; it must be True or False")
    modules = dict(model.named_modules())
    left_out = {name for name in modules if any(fnmatch.fnmatchcase(name, pattern) for pattern in exclude)}
    report = PatchReport(type(model).__name__, dry_run=dry_run)
    undo: list[Any] = []
    interface = _interface_of_transformers(model, dtype, left_out)
    inside_multihead = {
        id(part)
        for module in modules.values()
        if isinstance(module, torch.nn.MultiheadAttention)
        for part in module.modules()
        if part is not module
    }
    # If an expert of a list is excluded, the whole list is.
    with_excluded_experts = {name.partition(".experts.")[0] for name in left_out if ".experts." in name}
    inside_experts: dict[int, tuple[str, str]] = {}
    try:
        if attention and not dry_run:
            _switch_attention(model, interface, undo)
        if "transformers" in sys.modules:
            _switch_losses(modules, left_out, loss, fused_loss, dtype, dry_run, report, undo)
        for name, module in modules.items():
            excluded = name in left_out or name in with_excluded_experts
            with torch.device(
                "cpu"
            ):  # forwards are tried there, even if the caller builds on the meta device
                found = judge(
                    name, module, wanted, dtype, excluded, interface, inside_multihead, inside_experts
                )
            for row, rule in found:
                report.rows.append(row)
                if row.part == "moe" and (row.replaced_by or is_replaced(module)):
                    for part in parts_read_by(module):
                        inside_experts[id(part)] = (row.replaced_by, row.reason)
                if rule is not None and row.replaced_by and not dry_run:
                    _replace(name, module, rule, undo)
                    if join_experts and "experts" in module._modules and row.part == "moe":
                        join_weights(module)
        for name, module in modules.items():
            if isinstance(module, torch.nn.TransformerEncoderLayer) and any(
                row.replaced_by and row.module.startswith(name + "." if name else "") for row in report.rows
            ):
                report.rows.append(
                    PatchRow(name, type(module).__name__, "", "its modules, not torch's fused inference")
                )
                if not dry_run and not is_replaced(module):
                    _replace(name, module, ("torch.nn.TransformerEncoderLayer",), undo)
    except BaseException:
        for step in reversed(undo):
            step()
        raise
    report._undo = undo
    return report


def unpatch(model: torch.nn.Module) -> None:
    """Undo every patch of this model, or of a copy of it: restores the original classes, forwards and configurations.

    Raises RuntimeError if the class of one of `model`'s modules has been changed since (by fully_shard); then nothing is changed.
    """
    from ._patch_classes import is_replaced, restore_class

    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"hipkittens.unpatch: model is {type(model).__name__}; it must be a torch.nn.Module")
    replaced = [(name, module) for name, module in model.named_modules() if is_replaced(module)]
    done: list[tuple[torch.nn.Module, type]] = []
    try:
        for name, module in replaced:
            kind = type(module)
            restore_class(name, module)
            done.append((module, kind))
    except RuntimeError:
        for module, kind in done:
            module.__class__ = kind
        raise
    for module in model.modules():
        for switch in reversed(vars(module).pop(_SWITCHES, [])):
            switch.restore()


@contextlib.contextmanager
def patched(model: torch.nn.Module, **options: Any) -> Iterator[PatchReport]:
    """Context manager: patch(model, **options) inside; yields the report. Earlier patches remain in place."""
    report = patch(model, **options)
    try:
        yield report
    finally:
        for step in reversed(report._undo):
            step()


def _replace(name: str, module: torch.nn.Module, rule: tuple, undo: list[Any]) -> None:
    from ._patch_classes import replacement_class, restore_class

    module.__class__ = replacement_class(type(module), rule)
    undo.append(lambda: restore_class(name, module))


def _interface_of_transformers(model, dtype, left_out) -> dict[str, tuple[Any, str]]:
    """For each module that uses Transformers' AttentionInterface: its configuration, and why it is not replaced, or ""."""
    if "transformers" not in sys.modules:
        return {}
    from .integrations import _transformers_configs

    return _transformers_configs.refusals(model, dtype, left_out)


def _switch_losses(modules, left_out, wanted, fused, dtype, dry_run, report, undo) -> None:
    from ._patch_report import PatchRow
    from .integrations import _transformers_fused_loss
    from .integrations._transformers_loss import LossSwitch, refusal

    for name, module in modules.items():
        reason = refusal(module)
        if reason is None:
            continue
        if not reason and name in left_out:
            reason = "it was excluded"
        elif not reason and not wanted:
            reason = "loss=False"
        by = "" if reason else "hipkittens.cross_entropy"
        report.rows.append(PatchRow(name, type(module).__name__, "loss", by, reason))
        if by and not dry_run:
            _keep(module, LossSwitch(module), undo)
        if not fused:
            continue
        reason = "it was excluded" if name in left_out else _transformers_fused_loss.refusal(module, dtype)
        by = "" if reason else "hipkittens.linear_cross_entropy"
        report.rows.append(PatchRow(name, type(module).__name__, "fused_loss", by, reason))
        if by and not dry_run:
            _keep(module, _transformers_fused_loss.FusedLossSwitch(module), undo)


def _switch_attention(model, interface, undo) -> None:
    configs = [config for config, reason in interface.values() if not reason]
    configs = [config for config in configs if config._attn_implementation != "hipkittens"]
    if not configs:
        return
    from .integrations import _transformers_configs, _transformers_registration

    _transformers_registration.register()
    _keep(model, _transformers_configs.Switch(model, configs), undo)


def _keep(module: torch.nn.Module, switch, undo) -> None:
    """Records what is to be restored, for unpatch of the module and for the end of this patch."""
    switches = vars(module).setdefault(_SWITCHES, [])
    switches.append(switch)

    def restore() -> None:
        switch.restore()
        switches.remove(switch)
        if not switches:
            vars(module).pop(_SWITCHES, None)

    undo.append(restore)

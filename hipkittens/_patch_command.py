# SPDX-License-Identifier: MIT
"""hipkittens patch --dry-run MODEL: what hipkittens.patch would do with a model, built without weights or network."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from .patch import patch


def build(model: str) -> torch.nn.Module:
    """The model on the meta device: MODULE:FACTORY, a folder with config.json (or that file), or a configuration class of
    Transformers (LlamaConfig). SystemExit states what is wrong with any other name.
    """
    with torch.device("meta"):
        if Path(model).exists():
            return _of_configuration(_configuration_of(Path(model)))
        if ":" in model:
            return _of_factory(model)
        return _of_configuration(_configuration_class(model)())


def _of_factory(model: str) -> torch.nn.Module:
    name, _, attribute = model.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        factory: Any = importlib.import_module(name)
    except ImportError as error:
        raise SystemExit(f"hipkittens patch: {model}: cannot import {name}: {error}") from None
    for part in attribute.split("."):
        if not hasattr(factory, part):
            raise SystemExit(f"hipkittens patch: {model}: there is no {part} in {name}")
        factory = getattr(factory, part)
    made = factory() if callable(factory) and not isinstance(factory, torch.nn.Module) else factory
    if not isinstance(made, torch.nn.Module):
        raise SystemExit(
            f"hipkittens patch: {model} gives a {type(made).__name__}; it must give a torch.nn.Module"
        )
    return made


def _transformers() -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import transformers
    except ImportError:
        raise SystemExit(
            "hipkittens patch: a configuration needs Transformers: pip install transformers"
        ) from None
    return transformers


def _configuration_of(path: Path) -> Any:
    file = path / "config.json" if path.is_dir() else path
    if not file.exists():
        raise SystemExit(f"hipkittens patch: {path} has no config.json")
    try:
        return _transformers().AutoConfig.from_pretrained(file, local_files_only=True)
    except (OSError, ValueError) as error:
        raise SystemExit(f"hipkittens patch: {file}: {error}") from None


def _configuration_class(name: str) -> Any:
    kind = getattr(_transformers(), name, None)
    if not inspect.isclass(kind) or not name.endswith("Config") or not hasattr(kind, "model_type"):
        raise SystemExit(
            f"hipkittens patch: {name!r} is no folder, no MODULE:FACTORY and no configuration class of Transformers "
            "(such as LlamaConfig)"
        )
    return kind


def _of_configuration(configuration: Any) -> torch.nn.Module:
    """The class in its architectures, or otherwise the first that Transformers has for it; in bfloat16 unless it specifies another dtype."""
    transformers = _transformers()
    if getattr(configuration, "dtype", None) is None:
        configuration.dtype = torch.bfloat16
    for name in configuration.architectures or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)._from_config(configuration)
    for auto in (
        transformers.AutoModelForCausalLM,
        transformers.AutoModelForSeq2SeqLM,
        transformers.AutoModelForMaskedLM,
        transformers.AutoModel,
    ):
        if type(configuration) in auto._model_mapping:
            return auto.from_config(configuration)
    raise SystemExit(f"hipkittens patch: Transformers has no model for a {type(configuration).__name__}")


def main(model: str, as_json: bool, linear: bool, dtype: str | None) -> int:
    called_with = None if dtype is None else getattr(torch, dtype)
    report = patch(build(model), dry_run=True, linear=linear, dtype=called_with)
    if as_json:
        json.dump(report.as_dict(), sys.stdout, indent=2)
        print()
    elif sys.stdout.isatty():
        report.print()
    else:
        print(report, end="")
    return 0

# SPDX-License-Identifier: MIT
"""Installs and removes one of our kernels for another library's operator."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .. import _backend


class OperatorSwitch:
    """Installs `kernel` at the dispatch keys of CPU tensors and, on a ROCm build of PyTorch, of GPU tensors.

    The state belongs to the process. before and after are called when it changes. with_autograd also installs it at the autograd keys, for
    a kernel that handles autograd itself; otherwise PyTorch's derivative is kept, and calls `kernel` where it calls the operator.
    """

    def __init__(
        self,
        operator: torch._ops.OpOverload,
        kernel: Callable[..., Any],
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
        with_autograd: bool = True,
    ) -> None:
        self._operator, self._kernel, self._before, self._after = operator, kernel, before, after
        self._with_autograd = with_autograd
        self._lock = threading.RLock()
        self._activated = False
        self._contexts = 0
        self._library: torch.library.Library | None = None

    def is_active(self) -> bool:
        return self._library is not None

    def activate(self) -> None:
        with self._lock:
            self._activated = True
            self._update()

    def restore(self) -> None:
        with self._lock:
            self._activated = False
            self._update()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        with self._lock:
            self._contexts += 1
            self._update()
        try:
            yield
        finally:
            with self._lock:
                self._contexts -= 1
                self._update()

    def _update(self) -> None:
        wanted = self._activated or self._contexts > 0
        if wanted == self.is_active():
            return
        if torch.compiler.is_compiling():
            raise RuntimeError(
                "hipkittens: the operators of a program cannot change inside of what torch.compile compiles; do it outside"
            )
        from torch.compiler import config

        namespace, name = self._operator._schema.name.split("::")
        if self._operator._overloadname != "default":
            name = f"{name}.{self._operator._overloadname}"
        # Compiled programs are cached on disk by the program's text, which is the same with and without us.
        tag = f":hipkittens for {namespace}::{name}"
        if wanted:
            self._before()
            library = torch.library.Library(namespace, "IMPL")
            for device in _backend.dispatch_keys():
                for key in (device, f"Autograd{device}")[: 1 + self._with_autograd]:
                    with warnings.catch_warnings():
                        # The warning that a kernel was registered before, which is the purpose of this class.
                        warnings.filterwarnings("ignore", "Warning only once for all operators")
                        library.impl(name, self._kernel, key)
            self._library = library
            config.cache_key_tag += tag
        else:
            self._library._destroy()
            self._library = None
            config.cache_key_tag = config.cache_key_tag.replace(tag, "")
            self._after()
        self._operator._dispatch_cache.clear()  # what the dispatcher looked up before when tracing
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()

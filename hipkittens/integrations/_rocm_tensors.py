# SPDX-License-Identifier: MIT
"""CPU tensors that report being on "cuda", like tensors of a ROCm build."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _device
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SIMULATED, CPU = torch.device("cuda", 0), torch.device("cpu")
_FEWEST_TO_SWEEP = 4096


def is_simulated(where: str, device: Any) -> bool:
    """Whether this is the simulated GPU; ValueError for a second one."""
    place = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if place.type != "cuda":
        return False
    if place.index not in (None, 0):
        raise ValueError(
            f"{where}: device is {str(place)!r}, and one GPU is simulated; allowed: 'cuda', 'cuda:0', 'cpu'"
        )
    return True


class _Residents:
    """The storages that are on the simulated GPU. Weak references keep another storage at the same address from being mistaken for one."""

    def __init__(self) -> None:
        self._held: dict[int, StorageWeakRef] = {}
        self._sweep_at = _FEWEST_TO_SWEEP

    @staticmethod
    def _storage(tensor: torch.Tensor) -> Any:
        try:
            return tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse tensors, and others without one
            return None

    def key(self, tensor: torch.Tensor) -> int:
        storage = self._storage(tensor)
        return 0 if storage is None else storage._cdata

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return self.key(tensor) in self._held

    def add(self, tensor: torch.Tensor) -> None:
        storage = self._storage(tensor)
        if storage is None or storage.device.type != "cpu" or storage._cdata in self._held:
            return
        if len(self._held) >= self._sweep_at:
            self._held = {key: held for key, held in self._held.items() if not held.expired()}
            self._sweep_at = max(_FEWEST_TO_SWEEP, 2 * len(self._held))
        self._held[storage._cdata] = StorageWeakRef(storage)


class SimulatedPlacement(TorchDispatchMode):
    """Creates on the CPU what a program of this thread requests on "cuda", and remembers which storages those are.

    A result is on its device= argument's device, or else on "cuda" if one of the arguments is.
    """

    # Kernels that a library wraps for torch.compile (torch.library.wrap_triton) appear as such operators, which run below the mode.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.residents = _Residents()
        self.leaving = False

    def __torch_dispatch__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        place = next((at for at, each in enumerate(args) if isinstance(each, torch.device)), None)
        device = kwargs.get("device") if place is None else args[place]
        # Conversions within PyTorch, such as in rms_norm and the gradients of casts, use the device that a tensor has below the mode.
        converts = function is torch.ops.aten._to_copy.default and not self.leaving
        if device is None or (converts and not is_simulated(str(function), device)):
            resident = any(tensor in self.residents for tensor in tensors)
        else:
            resident = is_simulated(str(function), device)
            if resident and place is None:
                kwargs["device"] = CPU
            elif resident:  # aten::to.device, which inference mode does not decompose
                args = (*args[:place], CPU, *args[place + 1 :])
        result = function(*args, **kwargs)
        if resident:
            given = {self.residents.key(tensor) for tensor in tensors}
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor) and self.residents.key(leaf) not in given:
                    self.residents.add(leaf)
        return result

    def functions(self) -> Iterator[tuple[Any, str, Any]]:
        """(owner, name, replacement) for functions of torch that inspect devices before they dispatch."""
        residents, placement = self.residents, self
        base = torch._C.TensorBase
        base_to = torch.Tensor.to

        def resides(tensor: torch.Tensor) -> bool:
            # Subclasses such as FakeTensor answer themselves.
            return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor in residents

        def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if "other" in kwargs:
                args, kwargs = (kwargs["other"], *args), {k: v for k, v in kwargs.items() if k != "other"}
            if args and isinstance(args[0], torch.Tensor):
                args = (args[0].device, args[0].dtype, *args[1:])
            named = "device" in kwargs
            place = kwargs["device"] if named else args[0] if args else None
            if isinstance(place, bool) or not isinstance(place, str | int | torch.device):
                return base_to(self, *args, **kwargs)
            stays = resides(self) and is_simulated("Tensor.to", place)
            if stays:
                place = CPU
            else:
                if is_simulated("Tensor.to", place):
                    place = (
                        SIMULATED  # with an index; without one torch asks the driver for the current device
                    )
                elif not resides(self):
                    return base_to(self, *args, **kwargs)
                if len(args) < 4:
                    kwargs["copy"] = True  # in inference mode nothing else conveys this below the mode
            if named:
                kwargs["device"] = place
            else:
                args = (place, *args[1:])
            before, placement.leaving = placement.leaving, place is not SIMULATED and not stays
            try:
                result = base_to(self, *args, **kwargs)
            finally:
                placement.leaving = before
            if stays:
                residents.add(result)
            return result

        def cuda(self: torch.Tensor, device: Any = None, non_blocking: bool = False, **format: Any) -> Any:
            return to(self, SIMULATED if device is None else device, non_blocking=non_blocking, **format)

        def cpu(self: torch.Tensor, **format: Any) -> torch.Tensor:
            return to(self, "cpu", **format)

        def type_as(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return to(self, other.device, other.dtype)

        def numpy(self: torch.Tensor, *, force: bool = False) -> Any:
            if resides(self) and not force:
                raise TypeError(
                    "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
                )
            return base.numpy(cpu(self.detach()) if resides(self) else self, force=force)

        def record_stream(self: torch.Tensor, stream: Any) -> None:
            # A no-op for tensors of the simulated GPU, since its work is complete when it is queued.
            if not resides(self):
                base.record_stream(self, stream)

        base_deepcopy = torch.Tensor.__deepcopy__

        def deepcopy(self: torch.Tensor, memo: dict) -> torch.Tensor:
            copy = base_deepcopy(self, memo)  # of the storage's bytes, which is not an operator
            if resides(self):
                residents.add(copy)
            return copy

        yield torch.Tensor, "to", to
        yield torch.Tensor, "cuda", cuda
        yield torch.Tensor, "cpu", cpu
        yield torch.Tensor, "type_as", type_as
        yield torch.Tensor, "numpy", numpy
        yield torch.Tensor, "record_stream", record_stream
        yield torch.Tensor, "__deepcopy__", deepcopy
        yield (
            torch.Tensor,
            "device",
            property(lambda self: SIMULATED if resides(self) else base.device.__get__(self)),
        )
        yield (
            torch.Tensor,
            "is_cuda",
            property(lambda self: True if resides(self) else base.is_cuda.__get__(self)),
        )
        yield (
            torch.Tensor,
            "is_cpu",
            property(lambda self: False if resides(self) else base.is_cpu.__get__(self)),
        )
        yield (
            torch.Tensor,
            "get_device",
            lambda self: 0 if resides(self) else base.get_device(self),
        )
        placed = "tensor", "as_tensor", "asarray"
        for name in placed:
            yield torch, name, _placed(getattr(torch, name))
        for function in _device._device_constructors():
            name = function.__name__
            if name not in placed and vars(torch).get(name) is function:
                yield torch, name, _numbered(function)


def _placed(function: Callable) -> Callable:
    """torch.tensor and similar functions, which create the tensor before they dispatch: it is created on the CPU and then moved."""

    def make(
        data: Any, *args: Any, device: Any = None, requires_grad: bool = False, **kwargs: Any
    ) -> torch.Tensor:
        if device is None:
            device = data.device if isinstance(data, torch.Tensor) else torch.empty(0).device
        if not is_simulated(f"torch.{function.__name__}", device):
            given = {"requires_grad": True} if requires_grad else {}
            return function(data, *args, device=device, **given, **kwargs)
        if isinstance(data, torch.Tensor) and function.__name__ != "tensor":
            made = data.to(device)
            dtype = kwargs.get("dtype", args[0] if args else None)
            made = made.to(dtype) if dtype is not None else made
            made = made.clone() if kwargs.get("copy") and made is data else made
        else:
            made = function(data, *args, device=CPU, **kwargs).to(device)
        return made.requires_grad_() if requires_grad else made

    return make


def _numbered(function: Callable) -> Callable:
    """torch.empty and similar functions with device=0, such as torch.cuda.current_device(): torch requests an accelerator before it
    dispatches.
    """

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        device = kwargs.get("device")
        if isinstance(device, int) and is_simulated(f"torch.{function.__name__}", device):
            kwargs["device"] = SIMULATED
        return function(*args, **kwargs)

    return make


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Context manager: an attribute with another value; one that was inherited, or absent, is deleted afterwards."""
    own = name in vars(owner)
    before = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)

# SPDX-License-Identifier: MIT
"""hipkittens.integrations.rocm: Liger-Kernel and AITER's Triton operators, unchanged, on tensors of device="cuda"; and what is restored
afterwards.
"""

import copy

import pytest
import torch

pytest.importorskip("triton", reason="the triton wheel is not installed (./run test installs it)")

import hipkittens
from hipkittens.integrations import rocm
from tests.oracles.aiter import triton as aiter_triton
from tests.oracles.aiter.wheel import needs_wheel

TARGETS = ("gfx942", "gfx950")
# For results and gradients: the order of float32's sums; and one rounding to bfloat16, or two where a product is rounded before.
BARS = {torch.float32: 1e-6, torch.bfloat16: 6e-3}
functional = torch.nn.functional


@pytest.fixture(params=TARGETS)
def target(request):
    with rocm.active(), hipkittens.simulate(request.param, checks="all") as run:
        yield request.param
        assert [str(finding) for finding in run.findings] == []


def random(*sizes, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sizes, generator=generator).to("cuda", dtype)


def compare_with_gradients(function, exact, *tensors, bar):
    """Compare result and gradients with those of `exact` in float64, on the CPU."""
    mine = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    right = [tensor.detach().cpu().double().requires_grad_() for tensor in tensors]
    result, expected = function(*mine), exact(*right)
    step = random(*expected.shape, dtype=result.dtype, seed=99)
    pairs = [(result.detach(), expected.detach())]
    expected.backward(step.cpu().double())
    result.backward(step)  # Liger writes gradients over it
    pairs += [(a.grad, b.grad) for a, b in zip(mine, right, strict=True)]
    for ours, reference in pairs:
        assert ours.device.type == "cuda"
        assert float((ours.cpu().double() - reference).norm() / reference.norm()) < bar


@pytest.mark.parametrize("dtype", BARS, ids=str)
def test_liger_rms_norm(target, dtype):
    pytest.importorskip("liger_kernel", reason="liger-kernel is not installed")
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    compare_with_gradients(
        lambda x, w: LigerRMSNormFunction.apply(x, w, 1e-6),
        lambda x, w: functional.rms_norm(x, (768,), w, 1e-6),
        random(17, 768, dtype=dtype),
        random(768, dtype=dtype, seed=1),
        bar=BARS[dtype],
    )


@pytest.mark.parametrize("dtype", BARS, ids=str)
def test_liger_swiglu(target, dtype):
    pytest.importorskip("liger_kernel", reason="liger-kernel is not installed")
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    compare_with_gradients(
        LigerSiLUMulFunction.apply,
        lambda a, b: functional.silu(a) * b,
        random(9, 1000, dtype=dtype),
        random(9, 1000, dtype=dtype, seed=1),
        bar=BARS[dtype],
    )


@pytest.mark.parametrize("dtype", BARS, ids=str)
def test_liger_cross_entropy(target, dtype):
    """40000 classes: 32 warps, unless this is ROCm."""
    pytest.importorskip("liger_kernel", reason="liger-kernel is not installed")
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    labels = torch.randint(0, 40000, (5,), device="cuda")
    compare_with_gradients(
        lambda x: LigerCrossEntropyFunction.apply(x, labels, None)[0],
        lambda x: functional.cross_entropy(x, labels.cpu()),
        random(5, 40000, dtype=dtype),
        bar=BARS[dtype],
    )


@needs_wheel
def test_aiter(target):
    x, w = random(32, 512, dtype=torch.bfloat16), random(512, dtype=torch.bfloat16, seed=1)
    other = random(96, 512, dtype=torch.bfloat16, seed=2)
    exact_x = x.cpu().double()
    results = [
        (
            aiter_triton.module("rmsnorm").rms_norm(x, w, 1e-6),
            functional.rms_norm(exact_x, (512,), w.cpu().double(), 1e-6),
        ),
        (aiter_triton.module("softmax").softmax(x), exact_x.softmax(-1)),
        (aiter_triton.module("gemm_a16w16").gemm_a16w16(x, other), exact_x @ other.cpu().double().T),
    ]
    for ours, exact in results:
        assert ours.is_cuda
        assert float((ours.cpu().double() - exact).norm() / exact.norm()) < BARS[torch.bfloat16]


def test_our_own_functions_take_such_tensors(target):
    compare_with_gradients(
        lambda x, w: hipkittens.rms_norm(x, w, 1e-6),
        lambda x, w: functional.rms_norm(x, (256,), w, 1e-6),
        random(6, 256, dtype=torch.bfloat16),
        random(256, dtype=torch.bfloat16, seed=1),
        bar=6e-3,
    )


def test_what_torch_says_of_the_device(target):
    properties = torch.cuda.get_device_properties("cuda")
    assert torch.version.hip and torch.version.cuda is None
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
    assert properties.gcnArchName.split(":")[0] == target
    assert properties.multi_processor_count == {"gfx942": 304, "gfx950": 256}[target]
    assert properties.name == torch.cuda.get_device_name() and "simulated" in properties.name
    assert torch.cuda.get_device_capability() == {"gfx942": (9, 4), "gfx950": (9, 5)}[target]
    with torch.cuda.device(0), torch.cuda.device(torch.zeros(1, device="cuda").device):
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            assert torch.cuda.current_stream().cuda_stream == 0
            torch.zeros(1, device=torch.cuda.current_device()).record_stream(torch.cuda.current_stream())
    torch.cuda.manual_seed(3)
    first = torch.rand(4, device="cuda")
    torch.manual_seed(3)
    assert torch.equal(first, torch.rand(4, device="cuda"))
    (generator,) = torch.cuda.default_generators  # whose states Megatron exchanges
    generator.set_state(torch.Generator().manual_seed(3).get_state())
    assert torch.equal(first, torch.rand(4, device="cuda"))
    assert torch.equal(torch.cuda.random.get_rng_state(), torch.get_rng_state())


def test_kernels_wrapped_for_compilation(target):
    """Launched as flash-attn's Triton kernels are: by an operator that wraps the kernel."""
    from tests.oracles import triton_kernels as kernels

    x, out = torch.arange(2000.0, device="cuda"), torch.empty(2000, device="cuda")
    torch.library.wrap_triton(kernels.add)[(2,)](x, x, out, 2000, BLOCK=1024)
    assert out.is_cuda and torch.equal(out, x + x)


def test_modelled_times():
    import triton

    from tests.oracles import triton_kernels as kernels

    with rocm.active(), hipkittens.simulate("gfx942"):
        x, out = torch.ones(2048, device="cuda"), torch.empty(2048, device="cuda")
        assert triton.testing.do_bench(lambda: kernels.add[(2,)](x, x, out, 2048, BLOCK=1024)) > 0
        assert torch.equal(out, x + x)


def test_where_tensors_are(target):
    x = torch.ones(4, 3, device="cuda", requires_grad=True)
    on_gpu = [
        x, x * 2, x[1:], x.T, x.detach(), torch.empty_like(x), x.new_zeros(2), x.bfloat16(), x + torch.zeros(()),
        torch.zeros(2).cuda(), torch.zeros(2).to("cuda:0", torch.float16), torch.zeros(2).to(x), x.to("cuda", torch.float16),
        x.to(device="cuda"), torch.tensor([1, 2], device="cuda"), torch.as_tensor([1, 2], device="cuda"),
        torch.nn.Linear(2, 2).cuda().weight, torch.nn.Linear(2, 2, device="cuda").bias, torch.nn.Parameter(x.detach()),
        torch.zeros(2, device=x.device), torch.autograd.grad((x * x).sum(), x)[0],
    ]  # fmt: skip
    layer = torch.nn.Linear(2, 2, device="cuda")
    # Which convert within PyTorch.
    normed = torch.nn.functional.rms_norm(x.bfloat16(), (3,), x[0].bfloat16())
    x.register_hook(on_gpu.append)
    normed.float().sum().backward()
    on_gpu += [normed, torch.zeros(2).type_as(x)]
    on_gpu += [copy.deepcopy(x.detach()), *copy.deepcopy(layer).parameters(), *layer.state_dict().values()]
    on_cpu = [torch.zeros(2), x.cpu(), x.to("cpu"), x.detach().cpu() * 2, torch.zeros(2).copy_(x[0, :2])]
    on_cpu += [x.type_as(torch.zeros(2)), x.to("cpu", torch.float16)]
    on_cpu += [
        torch.zeros_like(x, device="cpu"),
        torch.tensor([1]),
        torch.nn.Linear(2, 2).cuda().cpu().weight,
    ]
    for tensor in on_gpu:
        assert str(tensor.device) == "cuda:0" and tensor.is_cuda and not tensor.is_cpu
        assert tensor.get_device() == 0
    for tensor in on_cpu:
        assert tensor.device.type == "cpu" and not tensor.is_cuda and tensor.is_cpu
    shared = torch.zeros(2, device="cuda")
    shared.numpy(force=True)[0] = 5
    assert shared.tolist() == [0, 0]
    assert x.cuda() is x and x.to("cuda") is x
    with torch.inference_mode():
        for moved in (
            torch.zeros(2).cuda(),
            torch.zeros(2).to("cuda"),
            torch.zeros(2).to("cuda", torch.float32, False, True),
        ):
            assert moved.is_cuda
        assert x.cpu().is_cpu
    assert x.cpu().data_ptr() != x.data_ptr()
    with torch.device("cuda"):
        assert torch.empty(2).is_cuda and torch.tensor([1.0]).is_cuda and torch.as_tensor([1]).is_cuda
        assert torch.as_tensor(torch.zeros(2, device="cpu")).is_cpu


def test_what_is_refused(target):
    x = torch.zeros(2, device="cuda")
    with pytest.raises(ValueError, match="'cuda:1', and one GPU is simulated"):
        torch.zeros(2, device="cuda:1")
    with pytest.raises(ValueError, match="'cuda:1', and one GPU is simulated"):
        x.to(1)
    with pytest.raises(ValueError, match=r"get_device_properties: device is 'cuda:3'"):
        torch.cuda.get_device_properties("cuda:3")
    with pytest.raises(NotImplementedError, match=r"elapsed_time: the simulated GPU has no clock"):
        torch.cuda.Event(enable_timing=True).elapsed_time(torch.cuda.Event())
    with pytest.raises(NotImplementedError, match=r"torch\.cuda\.CUDAGraph is not imitated"):
        torch.cuda.CUDAGraph()
    with pytest.raises(TypeError, match=r"Use Tensor\.cpu\(\)"):
        x.numpy()


def names():
    owners = (torch, torch.version, torch.cuda, torch.Tensor)
    return [
        {name: value for name, value in vars(owner).items() if name != "_pin_memory_utils"}
        for owner in owners
    ]


def test_everything_comes_back():
    torch.zeros(1).to("cpu")
    before = names()
    with pytest.raises(KeyError), rocm.active(), rocm.active():
        x = torch.ones(2, device="cuda")
        raise KeyError
    after = names()
    for ours, theirs in zip(before, after, strict=True):
        assert ours.keys() == theirs.keys()
        assert [name for name in ours if ours[name] is not theirs[name]] == []
    assert x.device.type == "cpu" and not torch.cuda.is_available() and torch.version.hip is None
    with pytest.raises((AssertionError, NotImplementedError)):
        torch.zeros(2, device="cuda")
    assert hipkittens.softmax(torch.zeros(2, 64, dtype=torch.bfloat16)).device.type == "cpu"

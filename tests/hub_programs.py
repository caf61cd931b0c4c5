# SPDX-License-Identifier: MIT
"""Programs that tests/test_hub_kernels.py runs in separate processes with `kernels` and with Transformers 5: NAME REPOSITORY."""

import importlib.util
import shutil
import sys
from pathlib import Path

import torch

BF16 = torch.bfloat16


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


def loads(repository: Path) -> None:
    """A build is self-contained: it does not need an installed hipkittens, and can be loaded next to one."""
    import kernels
    from kernels._rust import Digest

    module = kernels.get_local_kernel(repository)
    assert module.__name__.startswith("_hipkittens_cpu_")
    (loaded,) = kernels.get_loaded_kernels()
    loaded.metadata.digest.validate(
        Digest.hash_variant(loaded.metadata.digest.algorithm, Path(module.__file__).parent)
    )
    x = draw(3, 8).requires_grad_()
    out = module.rms_norm(x, None)
    out.sum().backward()
    module.flash_attn_func(*(draw(1, 4, 2, 16, seed=seed) for seed in range(3)), causal=True)
    assert not hasattr(module, "patch") and "hipkittens" not in sys.modules
    assert not hasattr(torch.ops.hipkittens, "rms_norm")

    import hipkittens

    y = x.detach().clone().requires_grad_()
    expected = hipkittens.rms_norm(y, None)
    expected.sum().backward()
    assert torch.equal(out, expected) and torch.equal(x.grad, y.grad)
    with hipkittens.simulate("gfx950"):  # the settings of one do not affect the other
        assert module.hipkittens._backend.arch() == "gfx942"

    # The same build from another folder shares what is loaded.
    shutil.copytree(repository, repository.parent / "other")
    again = kernels.get_local_kernel(repository.parent / "other")
    assert again is not module and again.rms_norm is module.rms_norm

    # Under another name, the installed package, imported from its own file and from a copy, would register its operators twice.
    installed = Path(hipkittens.__file__).parent
    copied = repository.parent / "hipkittens"
    shutil.copytree(installed, copied, ignore=shutil.ignore_patterns("__pycache__"))
    for number, folder in enumerate((installed, copied)):
        name = f"second_{number}"
        spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[name])
        except ImportError as error:
            assert f"torch.ops.hipkittens is registered already, by {installed / 'lib' / '_ops.so'}" in str(
                error
            )
        else:
            raise AssertionError(f"{folder} was loaded twice")


def links(repository: Path) -> None:
    """A repository as the hub's cache stores it: every file is a link to a file named by its digest, in a flat folder."""
    import hashlib

    import kernels

    cache = repository.parent / "cache"
    (cache / "blobs").mkdir(parents=True)
    for path in sorted(
        file for file in repository.rglob("*") if file.is_file() and "__pycache__" not in file.parts
    ):
        blob = cache / "blobs" / hashlib.sha256(path.read_bytes()).hexdigest()
        blob.write_bytes(path.read_bytes())
        link = cache / "snapshot" / path.relative_to(repository)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    module = kernels.get_local_kernel(cache / "snapshot")
    assert "snapshot" in module.__file__
    print(module.rms_norm(draw(3, 8), None).sum().item())


def kernelizes(repository: Path) -> None:
    """Every layer, from the repository and from this installation, also under torch.compile."""
    import kernels
    from kernels import LocalLayerRepository, Mode, use_kernel_forward_from_hub

    from hipkittens.integrations import kernels as installed

    @use_kernel_forward_from_hub("RMSNorm")
    class Norm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.variance_epsilon = torch.nn.Parameter(torch.ones(16, dtype=BF16)), 1e-6

        def forward(self, hidden_states):
            return torch.nn.functional.rms_norm(hidden_states, (16,), self.weight, self.variance_epsilon)

    @use_kernel_forward_from_hub("SiluAndMul")
    class Gate(torch.nn.Module):
        def forward(self, x):
            a, b = x.chunk(2, -1)
            return torch.nn.functional.silu(a) * b

    x, plain = draw(5, 16), torch.nn.Sequential(Norm(), Gate())
    results = [plain(x)]
    here = {
        name: {"cpu": LocalLayerRepository(repository, layer_name=name)} for name in ("RMSNorm", "SiluAndMul")
    }
    model = torch.nn.Sequential(Norm(), Gate())
    with kernels.use_kernel_mapping(here, inherit_mapping=False):
        kernels.kernelize(model, mode=Mode.TRAINING | Mode.TORCH_COMPILE, device="cpu", use_fallback=False)
    assert model[0].forward.__func__.__module__.startswith("_hipkittens_cpu_")
    results += [model(x), torch.compile(model, fullgraph=True, backend="aot_eager")(x)]
    model = installed.kernelize(torch.nn.Sequential(Norm(), Gate()))
    assert model[1].forward.__func__.__module__ == "hipkittens.layers"
    results.append(model(x))
    assert torch.equal(results[1], results[2]) and torch.equal(results[1], results[3])
    torch.testing.assert_close(results[1], results[0], atol=0.02, rtol=0.02)
    results[1].sum().backward()
    try:
        installed.kernelize(torch.nn.Linear(2, 2, device="meta"))
    except ValueError as error:
        assert "device is 'meta'; allowed: 'rocm'" in str(error)


def transformers(repository: Path) -> None:
    """use_kernels of Transformers, with our layers as its mapping, and the attention of the same repository."""
    import kernels
    import transformers
    from kernels import LocalLayerRepository

    configuration = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=40, max_position_embeddings=32,
    )  # fmt: skip
    torch.manual_seed(0)
    plain = transformers.LlamaForCausalLM(configuration).to(BF16).eval()
    ids = torch.arange(14).reshape(2, 7)
    with torch.no_grad():
        expected = plain(ids).logits
    model = transformers.LlamaForCausalLM._from_config(
        configuration, attn_implementation="hipkittens/hipkittens", dtype=BF16
    )
    model.load_state_dict(plain.state_dict())
    layers = ("RMSNorm", "rotary_pos_emb")
    kernels.register_kernel_mapping(
        {name: {"cpu": LocalLayerRepository(repository, layer_name=name)} for name in layers}
    )
    model.set_use_kernels(True)
    assert model.use_kernels
    attention = model.model.layers[0].self_attn
    for served in (model.model.norm, attention._kernel_funcs["rotary_pos_emb"]):
        assert served.forward.__func__.__module__.startswith("_hipkittens_cpu_")
    loss = model(ids, labels=ids)
    torch.testing.assert_close(loss.logits, expected, atol=0.02, rtol=0.05)
    loss.loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert "hipkittens" not in sys.modules


if __name__ == "__main__":
    program = {each.__name__: each for each in (loads, links, kernelizes, transformers)}[sys.argv[1]]
    program(Path(sys.argv[2]))

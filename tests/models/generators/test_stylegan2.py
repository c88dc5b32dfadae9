"""StyleGAN2's layers against plain formulas, and its pickles read without running them."""

import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.models.generators.files import load_generator, save_generator
from veilset.models.generators.inert_pickles import Call, Name, read_inert
from veilset.models.generators.stylegan2 import StyleGan2, _Convolution, _doubled, _filter
from veilset.models.generators.stylegan2_conversion import convert_stylegan2


def small(seed: int = 0, **settings: int) -> StyleGan2:
    torch.manual_seed(seed)
    made = StyleGan2(**{"size": 16, "channels": 3, "latent_size": 8, "channel_base": 64, "channel_max": 12} | settings)
    for name, value in made.named_parameters():
        if name.endswith(("bias", "noise_strength")):
            nn.init.normal_(value, std=0.3)
    return made.eval().requires_grad_(False)


class Persistent:
    """Pickles a network as NVIDIA's persistent classes do: a call of a loader, with source code and state."""

    def __init__(self, module: nn.Module, **attributes: Any) -> None:
        self.module, self.attributes = module, attributes

    def __reduce__(self) -> Any:
        state = dict(self.module.__dict__) | self.attributes
        state["_modules"] = OrderedDict(
            (name, Persistent(inner, conv_clamp=self.attributes.get("conv_clamp")))
            for name, inner in self.module._modules.items()
            if inner is not None
        )
        meta = {
            "type": "class",
            "version": 6,
            "module_src": "raise SystemExit('ran')",
            "class_name": "G",
            "state": state,
        }
        return _reconstruct_persistent_obj, (meta,)


def _reconstruct_persistent_obj(meta: Any) -> Any:
    raise AssertionError("the pickle was executed")


class Evil:
    """A pickle that leaves a mark when it is run."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_the_networks_images_are_in_range_and_alone() -> None:
    made = small()
    w = made.map(torch.randn(3, 8))
    images = made(w)
    assert images.shape == (3, 3, 16, 16)
    assert 0 <= float(images.min()) <= float(images.max()) <= 1
    assert float(images.std()) > 0
    assert torch.allclose(images[1:2], made(w[1:2]), atol=1e-5)


@pytest.mark.parametrize("doubling", [False, True])
def test_a_convolution_equals_styled_kernels(doubling: bool) -> None:
    """Equations 1 to 3 of the paper written out: one kernel for each image, then filter, noise, bias."""
    torch.manual_seed(0)
    layer = _Convolution(3, 4, 8, 5, 0, doubling=doubling)
    nn.init.normal_(layer.noise_strength)
    maps, w = torch.randn(2, 3, 4 if doubling else 8, 4 if doubling else 8), torch.randn(2, 5)
    found = layer(maps, w)
    for image in range(2):
        kernel = layer.weight * layer.affine(w)[image][None, :, None, None]
        kernel = kernel * (kernel.square().sum(dim=(1, 2, 3), keepdim=True) + 1e-8).rsqrt()
        plain = _spread_and_filtered(maps[image : image + 1], kernel) if doubling else None
        if plain is None:
            plain = functional.conv2d(maps[image : image + 1], kernel, padding=1)
        plain = plain + layer.noise_const * layer.noise_strength + layer.bias[:, None, None]
        plain = functional.leaky_relu(plain, 0.2) * 2**0.5
        assert torch.allclose(found[image : image + 1], plain, atol=1e-4)


def _spread_and_filtered(maps: Tensor, kernel: Tensor) -> Tensor:
    """Zeros between the pixels, a true convolution with the kernel, then the low-pass."""
    spread = torch.zeros(1, maps.shape[1], 2 * maps.shape[2] - 1, 2 * maps.shape[3] - 1)
    spread[:, :, ::2, ::2] = maps
    wide = functional.conv2d(spread, kernel.flip(2, 3), padding=2)
    blur = _filter().expand(len(kernel), 1, 4, 4)
    return 4 * functional.conv2d(functional.pad(wide, (1, 1, 1, 1)), blur, groups=len(kernel))


def test_doubling_keeps_a_flat_picture_flat() -> None:
    doubled = _doubled(torch.ones(1, 2, 6, 6), _filter())
    assert doubled.shape == (1, 2, 12, 12)
    assert torch.allclose(doubled[:, :, 2:-2, 2:-2], torch.ones(1, 2, 8, 8), atol=1e-6)


def test_saved_and_loaded_it_makes_the_same_images(tmp_path: Path) -> None:
    made = small()
    save_generator(made, tmp_path / "s.safetensors")
    w = made.map(torch.randn(2, 8))
    assert torch.equal(load_generator(tmp_path / "s.safetensors")(w), made(w))


def test_a_persistent_pickle_is_converted_without_running_it(tmp_path: Path) -> None:
    made = small(clamp=256)
    content = {"G": None, "D": None, "G_ema": Persistent(made, conv_clamp=256)}
    (tmp_path / "nvidia.pkl").write_bytes(pickle.dumps(content))
    converted = convert_stylegan2(tmp_path / "nvidia.pkl")
    w = made.map(torch.randn(2, 8))
    assert torch.equal(converted(w), made(w))
    assert converted.clamp == 256


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_malicious_pickle_is_not_executed(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "mark"
    path = tmp_path / "evil.pkl"
    path.write_bytes(pickle.dumps({"G_ema": Evil(mark)}, protocol=protocol))
    with pytest.raises(InputError):
        convert_stylegan2(path)
    path.write_bytes(pickle.dumps(Evil(mark), protocol=protocol))
    with pytest.raises(InputError, match=r"mkdir.*Nothing was run"):
        convert_stylegan2(path)
    assert not mark.exists()
    pickle.loads(path.read_bytes())  # noqa: S301 (its own)
    assert mark.exists(), "the pickle was harmless, so the test showed nothing"


def test_a_weight_that_is_a_call_is_not_executed(tmp_path: Path) -> None:
    made, mark = small(), tmp_path / "mark"
    made.mapping._buffers["w_avg"] = Evil(mark)  # type: ignore[assignment]
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps({"G_ema": Persistent(made)}))
    with pytest.raises(InputError, match="Expected a tensor"):
        convert_stylegan2(tmp_path / "evil.pkl")
    assert not mark.exists()


def test_bytes_of_a_storage_are_not_executed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    class Storage:
        def __reduce__(self) -> Any:
            return torch.storage._load_from_bytes, (pickle.dumps(Evil(mark)),)

    class Weight:
        def __reduce__(self) -> Any:
            return torch._utils._rebuild_tensor_v2, (Storage(), 0, (2,), (1,), False, OrderedDict())

    made = small()
    made.mapping._buffers["w_avg"] = Weight()  # type: ignore[assignment]
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps({"G_ema": Persistent(made)}))
    with pytest.raises(InputError, match="cannot be read"):
        convert_stylegan2(tmp_path / "evil.pkl")
    assert not mark.exists()


def test_other_pickles_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.pkl"
    path.write_bytes(pickle.dumps({"weights": [1, 2]}))
    with pytest.raises(InputError, match="found weights"):
        convert_stylegan2(path)
    path.write_bytes(b"no pickle at all")
    with pytest.raises(InputError, match="not a pickle"):
        convert_stylegan2(path)
    path.write_bytes(pickle.dumps({"G_ema": nn.Linear(2, 2)}))
    with pytest.raises(InputError, match="StyleGAN2 generator"):
        convert_stylegan2(path)
    tensorflow = b"\x80\x02cdnnlib.tflib.network\nNetwork\n)\x81."
    path.write_bytes(tensorflow)
    with pytest.raises(InputError, match="TensorFlow"):
        convert_stylegan2(path)


def test_the_reader_keeps_plain_values_and_records_calls(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, True, "text", b"bytes"], ("b", 1): {"c": (1, 2, 3, 4)}, "s": {1, 2}}
    path = tmp_path / "plain.pkl"
    for protocol in range(1, 6):
        path.write_bytes(pickle.dumps({**value, "call": OrderedDict(x=1)}, protocol=protocol))
        found = read_inert(path)
        call = found.pop("call")
        assert isinstance(call, Call)
        assert call.function == Name("collections", "OrderedDict")
        if protocol > 3:
            assert found == value
            assert call.items == {"x": 1}

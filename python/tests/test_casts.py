"""A cast reaches every tensor that it names: floats of one byte, too, bit for bit as torch casts them."""

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file as load_arrays

import shardwise as sw
import shardwise.torch as swt

F8 = {"f8_e4m3fn": torch.float8_e4m3fn, "f8_e5m2": torch.float8_e5m2, "f8_e4m3fnuz": torch.float8_e4m3fnuz,
      "f8_e5m2fnuz": torch.float8_e5m2fnuz, "f8_e8m0fnu": torch.float8_e8m0fnu}
WIDE = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same(found, needed):
    """Compares bit for bit; NaN may have any payload."""
    assert found.dtype == needed.dtype
    bits = BITS[needed.element_size()]
    nan = torch.isnan(needed.float())
    assert torch.equal(torch.isnan(found.float()), nan)
    assert torch.equal(found.view(bits)[~nan], needed.view(bits)[~nan])


def every_bit(dtype):
    return torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)


def floats(dtype):
    """Returns all floats of 16 bits; for other dtypes these, their neighbours, halves of all places, and random bits."""
    if dtype in (torch.float16, torch.bfloat16):
        return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    some = torch.cat([torch.arange(65536, dtype=torch.int32).to(torch.int16).view(d).double() for d in (torch.float16, torch.bfloat16)])
    near = torch.cat([some, torch.nextafter(some.float(), torch.tensor(torch.inf)).double(),
                      torch.nextafter(some.float(), torch.tensor(-torch.inf)).double()])
    random = torch.randint(-(2**31), 2**31, (100_000,), generator=torch.Generator().manual_seed(1)).to(torch.int32).view(torch.float32)
    return torch.cat([near, random.double()]).to(dtype)


@pytest.mark.parametrize("ours", F8)
def test_floats_of_one_byte_become_wider_ones(tmp_path, ours):
    stored = every_bit(F8[ours])
    swt.save(tmp_path / "c", {"w": stored})
    for wide, dtype in WIDE.items():
        same(swt.load_state_dict(tmp_path / "c", cast=wide)["w"], stored.float().to(dtype))


@pytest.mark.parametrize("ours", F8)
@pytest.mark.parametrize("wide", WIDE)
def test_wider_floats_become_those_of_one_byte(tmp_path, ours, wide):
    values = floats(WIDE[wide])
    swt.save(tmp_path / "c", {"w": values})
    same(swt.load_state_dict(tmp_path / "c", cast=ours)["w"], values.float().to(F8[ours]))


@pytest.mark.parametrize("ours", ["f8_e4m3fn", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz"])
def test_ml_dtypes_rounds_alike(tmp_path, ours):
    values = floats(torch.float64).numpy()
    if ours == "f8_e4m3fn":  # beyond its largest number, which is 448, torch saturates and ml_dtypes gives NaN
        values = values[np.abs(values) <= 464]
    sw.save(tmp_path / "c", {"w": values})
    found = sw.load(tmp_path / "c", cast={"w": ours})["w"]
    needed = values.astype(getattr(ml_dtypes, "float8" + ours[2:]))
    nan = np.isnan(needed.astype(np.float32))
    assert np.array_equal(np.isnan(found.astype(np.float32)), nan)
    assert np.array_equal(found.view(np.uint8)[~nan], needed.view(np.uint8)[~nan])


def test_every_door(tmp_path):
    state = {name: every_bit(dtype) for name, dtype in F8.items()} | {
        "wide": torch.linspace(-9, 9, 37), "i": torch.arange(5), "b": torch.tensor([True, False]),
        "c": torch.randn(3, dtype=torch.complex128)}
    swt.save(tmp_path / "step-00000001", state)

    def check(found):
        for name, stored in state.items():
            is_float = stored.is_floating_point()
            same(found[name], stored.float().to(torch.bfloat16)) if is_float else None
            assert is_float or torch.equal(found[name], stored)

    check(swt.load_state_dict(tmp_path / "step-00000001", cast="bf16"))
    check({name: torch.from_numpy(a.view(np.int16)).view(torch.bfloat16) if a.dtype == ml_dtypes.bfloat16 else torch.from_numpy(a)
           for name, a in sw.load(tmp_path / "step-00000001", cast="bf16").items()})
    sw.reshard(tmp_path / "step-00000001", tmp_path / "cut", mesh="x=2", cast="bf16")
    check(swt.load_state_dict(tmp_path / "cut" / "step-00000001"))
    sw.export_model(tmp_path / "step-00000001", tmp_path / "m.safetensors", cast={"*": "bf16"}, names=[n for n in state if n != "c"])
    exported = load_arrays(tmp_path / "m.safetensors")
    assert {str(array.dtype) for name, array in exported.items() if name not in "ib"} == {"bfloat16"}
    sw.import_model(tmp_path / "m.safetensors", tmp_path / "back", cast="f8_e5m2")
    for name, tensor in swt.load_state_dict(tmp_path / "back").items():
        if name not in "ib":
            same(tensor, state[name].float().to(torch.bfloat16).to(torch.float8_e5m2))


def test_complex_becomes_complex(tmp_path):
    values = torch.tensor([1 + 2**-30 + 1e300j, -0.0 + 3j], dtype=torch.complex128)
    swt.save(tmp_path / "c", {"z": values, "w": torch.ones(2)})
    found = swt.load_state_dict(tmp_path / "c", cast="c64")
    assert torch.equal(found["z"], values.to(torch.complex64)) and torch.equal(found["w"], torch.ones(2))
    with pytest.raises(sw.InvalidArgument, match='tensor "z" is c128, not all of whose values are exact as f32'):
        sw.load(tmp_path / "c", cast={"z": "f32"})


def test_spellings_of_dtypes(tmp_path):
    swt.save(tmp_path / "c", {"w": torch.ones(2)})
    for text in ("bf16", "bfloat16", "BF16", "torch.bfloat16", torch.bfloat16, ml_dtypes.bfloat16):
        assert swt.load_state_dict(tmp_path / "c", cast=text)["w"].dtype == torch.bfloat16
    for text in ("f16", "float16", "half", "fp16", "F16", "torch.half"):
        assert swt.load_state_dict(tmp_path / "c", cast=text)["w"].dtype == torch.float16
    for text in ("F8_E4M3", "float8_e4m3fn", "torch.float8_e4m3fn"):
        assert swt.load_state_dict(tmp_path / "c", cast=text)["w"].dtype == torch.float8_e4m3fn

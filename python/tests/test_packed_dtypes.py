"""Elements of less than a byte in safetensors: their bytes come as u8, as torch's views have them."""

import json
import struct

import numpy as np
import pytest

import shardwise as sw


def written(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_bytes_of_packed_elements(tmp_path):
    content = bytes(range(1, 13))
    written(tmp_path / "a.safetensors", {"w": ("F32", [2], b"\0" * 8), "f4": ("F4", [3, 8], content), "f6": ("F6_E2M3", [2, 8], content),
                                         "g6": ("F6_E3M2", [4, 4], content), "none": ("F4", [0, 4], b"")})
    expected = {"f4": (3, 4), "f6": (2, 6), "g6": (4, 3)}
    sw.import_model(tmp_path / "a.safetensors", tmp_path / "x")
    for path in (tmp_path / "a.safetensors", tmp_path / "x"):
        found = sw.load(path)
        for name, shape in expected.items():
            assert found[name].dtype == np.uint8 and found[name].shape == shape and found[name].tobytes() == content
        assert found["none"].shape == (0, 2)


def test_as_torch_reads_them(tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
    safetensors = pytest.importorskip("safetensors.torch", reason="needs safetensors, which this environment has not")
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no float4_e2m1fn_x2")
    import shardwise.torch as swt

    packed = torch.arange(24, dtype=torch.uint8).reshape(3, 8)
    try:
        safetensors.save_file({"q": packed.view(torch.float4_e2m1fn_x2)}, tmp_path / "a.safetensors")
    except Exception as error:  # noqa: BLE001 - a version without it
        pytest.skip(f"this safetensors has no F4: {error!r:.80}")
    assert torch.equal(swt.load(tmp_path / "a.safetensors")["q"], packed)


@pytest.mark.parametrize("dtype,shape", [("F4", [3]), ("F4", []), ("F6_E2M3", [2])])
def test_elements_that_end_within_a_byte(tmp_path, dtype, shape):
    written(tmp_path / "a.safetensors", {"q": (dtype, shape, b"\0\0")})
    with pytest.warns(UserWarning, match=f'left out "q": dtype "{dtype}"'), pytest.raises(sw.Unsupported, match=f'"q": dtype "{dtype}"'):
        sw.open(tmp_path / "a.safetensors")["q"]


def test_sizes_are_checked(tmp_path):
    written(tmp_path / "a.safetensors", {"q": ("F4", [8], b"\0" * 3)})
    with pytest.raises(sw.Corrupt, match="needed for u8"):
        sw.open(tmp_path / "a.safetensors")
    written(tmp_path / "a.safetensors", {"q": ("F4", [2**63 - 1, 2], b"\0" * 3)})
    with pytest.raises(sw.Error):
        sw.open(tmp_path / "a.safetensors")

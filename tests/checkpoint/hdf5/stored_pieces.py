"""The pieces of a checkpoint of version 2, as docs/checkpoint_format.md says, without Shardwise and HDF5."""
import ctypes
import json
import pathlib
import struct

XXH3 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
XXH3.restype, XXH3.argtypes = ctypes.c_uint64, (ctypes.c_char_p, ctypes.c_size_t)


def xxh3(data):
    return XXH3(data, len(data))


def read_words(file, address, words):
    file.seek(address)
    return struct.unpack(f"<{words}Q", file.read(8 * words))


def stored_pieces(step):
    """Of each shard file, in the order of their names: its path, where its data begins, its pieces."""
    step = pathlib.Path(step)
    manifest = json.loads((step / "manifest.json").read_text())
    names = {xxh3(t["name"].encode()): t["name"] for t in manifest["tensors"]}
    writers = manifest["writers"]["count"]
    for writer, entry in enumerate(manifest["files"]):
        if entry is None:
            continue
        path = step / f"shards-{writer:05}-of-{writers:05}.h5"
        with path.open("rb") as file:
            description = read_words(file, entry[1] - 128, 16)
            words = iter(read_words(file, description[8], description[9]))
        pieces, numbers = [], {}
        for key in words:
            first_chunk, head = next(words), next(words)
            begin, end, chunk = ([next(words) for _ in range(head & 0xFF)] for _ in range(3))
            at = numbers.setdefault(key, [len(numbers), 0])
            pieces.append({"tensor": names[key], "box": list(zip(begin, end)), "chunk": chunk,
                           "first_chunk": first_chunk, "layout": ("contiguous", "chunked")[head >> 8 & 0xFF],
                           "codec": ("none", "zstd")[head >> 16], "dataset": f"/tensors/{at[0]}/{at[1]}"})
            at[1] += 1
        yield path, description[2], pieces


def index_paths(names):
    """Where each tensor is in index.h5."""
    def path(name):
        text = ""
        for at, character in enumerate(name):
            odd = at == 0 or at == len(name) - 1 or name[at - 1] == "/" or name[:at] in names
            text += f"%{ord(character):02X}" if character == "%" or (character == "/" and odd) else character
        parts = [p.replace(".", "%2E") if p in (".", "..") else p for p in text.split("/")]
        return "/" + "/".join(parts)
    return {name: path(name) for name in names}

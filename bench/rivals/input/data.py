"""The data of the input benchmarks, made once in a folder: about 1.1 GB, seeded."""
import pathlib

import numpy as np

ROWS, ROW_BYTES, ROWS_BATCH = 200_000, 784, 1024
TOKENS, WINDOW, TOKEN_BATCH = 200_000_000, 1025, 64
IMAGES, CLASSES = 2_000, 10


def make(folder):
    """Row i begins with i as 4 little-endian bytes, so that a delivered row can be checked."""
    folder = pathlib.Path(folder)
    if (folder / "made").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(7)
    make_rows(folder, random)
    random.integers(0, 50_000, TOKENS, dtype=np.uint16).tofile(folder / "tokens.bin")
    make_images(folder / "images", random)
    (folder / "made").touch()


def make_rows(folder, random):
    import h5py

    x = random.integers(0, 256, (ROWS, ROW_BYTES), dtype=np.uint8)
    x[:, :4] = np.arange(ROWS, dtype="<u4").view(np.uint8).reshape(-1, 4)
    y = (np.arange(ROWS) % 251).astype(np.uint8)
    np.save(folder / "rows.npy", x)
    np.save(folder / "labels.npy", y)
    with open(folder / "rows-idx2-ubyte", "wb") as out:
        out.write(bytes([0, 0, 8, 2]) + np.array([ROWS, ROW_BYTES], ">u4").tobytes())
        x.tofile(out)
    for name, chunks in (("rows.h5", None), ("rows_chunked.h5", (256, ROW_BYTES))):
        with h5py.File(folder / name, "w") as out:
            out.create_dataset("x", data=x, chunks=chunks)
            out.create_dataset("y", data=y)


def make_images(folder, random):
    """256x256 with the spectrum of photographs, about 16 KB each."""
    from PIL import Image

    for i in range(IMAGES):
        image = np.zeros((256, 256, 3))
        for side in (4, 16, 64, 256):
            part = random.normal(0, 30 * (4 / side) ** 0.5, (side, side, 3))
            image += np.kron(part, np.ones((256 // side, 256 // side, 1)))
        path = folder / f"class{i % CLASSES}" / f"{i:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(image + 128, 0, 255).astype(np.uint8)).save(path, quality=90)

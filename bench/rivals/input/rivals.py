"""Other libraries' input pipelines over the same data: rivals.py FOLDER CASE [--quick]

One case in this process. Prints a line of JSON as input_bench does. Each case checks the last batch
against the source. Placed on the eight host devices of JAX, but for cases called
"host".
"""
import itertools
import json
import os
import statistics
import sys
import time

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import numpy as np

import data

MESHES = {"data=8": (8,), "data=4,model=2": (4, 2)}


def rows_of(folder):
    return (np.load(f"{folder}/rows.npy", mmap_mode="r"), np.load(f"{folder}/labels.npy", mmap_mode="r"))


def windows_of(folder):
    flat = np.memmap(f"{folder}/tokens.bin", dtype=np.uint16, mode="r")
    count = (len(flat) - 1) // (data.WINDOW - 1)
    return np.lib.stride_tricks.as_strided(flat, (count, data.WINDOW), (2 * (data.WINDOW - 1), 2), writeable=False)


def batch_numbers(seed=0):
    """Rows of each batch of a shuffled epoch after another."""
    while True:
        order = np.random.default_rng(seed).permutation(data.ROWS)
        for i in range(data.ROWS // data.ROWS_BATCH):
            yield order[i * data.ROWS_BATCH:(i + 1) * data.ROWS_BATCH]
        seed += 1


def check_rows(x, source):
    x = np.asarray(x)
    numbers = np.ascontiguousarray(x[:, :4]).view("<u4").ravel()
    assert len(set(numbers.tolist())) == len(x) and np.array_equal(x, source[numbers]), "wrong rows"


def shardings(mesh):
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    names = ("data", "model")[:len(MESHES[mesh])]
    made = jax.make_mesh(MESHES[mesh], names)
    return NamedSharding(made, PartitionSpec(*names)), NamedSharding(made, PartitionSpec("data"))


def grain_rows(folder, mesh):
    """As an expert would: an element is a whole batch, gathered by a permutation of its own."""
    import grain
    import jax
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["rivals"])
    x, y = rows_of(folder)
    per_epoch = data.ROWS // data.ROWS_BATCH
    orders = {}

    def batch(number):
        epoch, i = divmod(int(number), per_epoch)
        if epoch not in orders:
            orders.clear()
            orders[epoch] = np.random.default_rng(epoch).permutation(data.ROWS)
        rows = orders[epoch][i * data.ROWS_BATCH:(i + 1) * data.ROWS_BATCH]
        return {"x": x[rows], "y": y[rows]}

    sx, sy = shardings(mesh)
    made = grain.MapDataset.range(10_000 * per_epoch).map(batch)
    made = made.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    made = grain.experimental.device_put(made, {"x": sx, "y": sy}, cpu_buffer_size=4, device_buffer_size=2)
    return iter(made), jax.block_until_ready, lambda b: check_rows(b["x"], x), data.ROWS_BATCH, "rows/s"


def jax_rows(folder, mesh):
    """Each device's rows and columns gathered straight from the file."""
    import jax

    x, y = rows_of(folder)
    sx, sy = shardings(mesh)
    shape = (data.ROWS_BATCH, data.ROW_BYTES)

    def place(rows):
        return (jax.make_array_from_callback(shape, sx, lambda at: x[rows[at[0]]][:, at[1]]),
                jax.device_put(y[rows], sy))

    return map(place, batch_numbers()), jax.block_until_ready, lambda b: check_rows(b[0], x), data.ROWS_BATCH, "rows/s"


def forever(loader):
    for _ in itertools.count():
        yield from loader


def torch_loader(rows, batch, workers, collate=None):
    import torch

    torch.set_num_threads(1)
    more = {"prefetch_factor": 4, "persistent_workers": True} if workers else {}
    return forever(torch.utils.data.DataLoader(rows, batch, shuffle=collate is not windows_batch, drop_last=True,
                                               num_workers=workers, collate_fn=collate, **more))


class Rows:
    def __init__(self, folder):
        self.x, self.y = rows_of(folder)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        import torch
        return torch.from_numpy(np.array(self.x[i])), int(self.y[i])


class RowBatches(Rows):
    def __getitems__(self, rows):
        import torch
        rows = np.asarray(rows)
        return torch.from_numpy(self.x[rows]), torch.from_numpy(self.y[rows])


class Windows:
    def __init__(self, folder):
        self.x = windows_of(folder)

    def __len__(self):
        return len(self.x)

    def __getitems__(self, rows):
        import torch
        return torch.from_numpy(self.x[rows[0]:rows[-1] + 1].copy())


class Images:
    """As torchvision's ImageFolder, and a resize of Pillow's."""

    def __init__(self, folder):
        import pathlib
        self.paths = sorted(pathlib.Path(folder, "images").glob("*/*.jpg"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        import torch
        from PIL import Image

        with open(self.paths[i], "rb") as file:
            image = Image.open(file).convert("RGB").resize((224, 224), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(image)), int(self.paths[i].parent.name[len("class"):])


def as_is(batch):
    return batch


def windows_batch(batch):  # in order
    return batch


def torch_rows(folder, workers):
    rows = Rows(folder)
    batches = torch_loader(rows, data.ROWS_BATCH, workers)
    return batches, as_is, lambda b: check_rows(b[0], rows.x), data.ROWS_BATCH, "rows/s"


def torch_row_batches(folder, workers, mesh=None):
    rows = RowBatches(folder)
    batches = torch_loader(rows, data.ROWS_BATCH, workers, as_is)
    wait = as_is
    if mesh:
        import jax

        to = list(shardings(mesh))
        batches = (jax.device_put([b[0].numpy(), b[1].numpy()], to) for b in batches)
        wait = jax.block_until_ready
    return batches, wait, lambda b: check_rows(b[0], rows.x), data.ROWS_BATCH, "rows/s"


def torch_tokens(folder, workers):
    batches = torch_loader(Windows(folder), data.TOKEN_BATCH, workers, windows_batch)

    def check(batch):
        assert np.array_equal(batch[:-1, -1], batch[1:, 0])

    return batches, as_is, check, data.TOKEN_BATCH * data.WINDOW, "tokens/s"


def torch_images(folder, workers):
    batches = torch_loader(Images(folder), 64, workers)

    def check(batch):
        assert tuple(batch[0].shape) == (64, 224, 224, 3)

    return batches, as_is, check, 64, "images/s"


CASES = {
    "rows host: torch, 2 workers": lambda f: torch_rows(f, 2),
    "rows host: torch, __getitems__, 0 workers": lambda f: torch_row_batches(f, 0),
    "rows host: torch, __getitems__, 2 workers": lambda f: torch_row_batches(f, 2),
    "tokens 64 host: torch, __getitems__, 0 workers": lambda f: torch_tokens(f, 0),
    "images: torch, 2 workers": lambda f: torch_images(f, 2),
}
for _mesh in MESHES:
    CASES |= {
        f"rows {_mesh}: grain, batches by hand": lambda f, m=_mesh: grain_rows(f, m),
        f"rows {_mesh}: jax, make_array_from_callback": lambda f, m=_mesh: jax_rows(f, m),
        f"rows {_mesh}: torch, __getitems__, 0 workers, device_put": lambda f, m=_mesh: torch_row_batches(f, 0, m),
    }


def main(folder, case, quick):
    windows, seconds = (5, 0.3) if quick else (9, 0.6)
    batches, wait, check, per_batch, unit = CASES[case](folder)
    for _ in range(20):
        batch = wait(next(batches))
    rates = []
    for _ in range(windows):
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            batch = wait(next(batches))
            count += per_batch
        rates.append(count / (time.perf_counter() - start))
    check(batch)
    print(json.dumps({"case": case, "unit": unit, "value": statistics.median(rates), "windows": rates, "of": {}}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "--quick" in sys.argv)
    os._exit(0)  # not waiting for threads that a rival leaves running

#!/usr/bin/env python3
"""Compares swt.Loader with torch's DataLoader over data sets that make many records in one call: batches.py [--rows N] [--json OUT]

Both take the same shuffled batches by turns, 5 each, without workers or with one thread. Prints rows a second and the ratio, whose
median is to be 1 or more: 0 is the status if all are. Run it with a Python that has torch and, for its rows, datasets.
"""
import argparse
import json
import statistics
import sys
import time

import numpy as np
import torch

import shardwise.torch as swt

TURNS = 5


class Rows:
    """Images and labels of tensors, by torch's protocol."""

    def __init__(self, images, labels):
        self.images, self.labels = torch.from_numpy(images), torch.from_numpy(labels)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"image": self.images[i], "label": self.labels[i]}

    def __getitems__(self, rows):
        return [{"image": x, "label": y} for x, y in zip(self.images[rows], self.labels[rows])]


class Single:
    """Records that `make` makes of one row of images and labels, each by itself."""

    def __init__(self, images, labels, make):
        self.images, self.labels, self.make = images, labels, make

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.make(self.images[i], self.labels[i])

    def __getitems__(self, rows):
        return [self.make(self.images[i], self.labels[i]) for i in rows]


def sources(rows):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 255, (rows, 784), dtype=np.uint8), rng.integers(0, 10, rows)
    yield "__getitems__", Rows(images, labels)
    yield "__getitems__, numpy records", Single(images, labels, lambda x, y: {"image": x, "label": y})
    yield "__getitems__, torch records", Single(images, labels, lambda x, y: {"image": torch.from_numpy(x), "label": int(y)})
    try:
        import datasets
    except ImportError:
        print("datasets: left out, as it is not installed", file=sys.stderr)
        return
    features = datasets.Features({"image": datasets.Sequence(datasets.Value("uint8")), "label": datasets.Value("int64")})
    table = datasets.Dataset.from_dict({"image": images, "label": labels}, features=features)
    for kind in ("torch", "numpy", None):
        yield f"datasets, format {kind}", table.with_format(kind)


def rows_per_second(batches):
    begin, rows = time.perf_counter(), 0
    for batch in batches:
        rows += len(batch["label"])
    return rows / (time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(1)  # as in a worker
    found = {}
    for name, source in sources(options.rows):
        for batch in (64, 256):
            pairs = []
            for turn in range(TURNS):
                other = rows_per_second(torch.utils.data.DataLoader(source, batch, shuffle=True, drop_last=True))
                with swt.Loader(source, batch_size=batch, seed=turn) as loader:
                    pairs.append((rows_per_second(loader), other))
            ours, theirs, ratio = (statistics.median(values) for values in zip(*((a, b, a / b) for a, b in pairs)))
            found[f"{name}, batches of {batch}"] = {"shardwise": ours, "torch": theirs, "ratio": ratio}
            print(f"{'MET' if ratio >= 1 else 'NOT MET':8}{name}, batches of {batch}: {ours:,.0f} rows/s, DataLoader {theirs:,.0f}, "
                  f"ratio {ratio:.2f}, needed 1")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)
    return any(row["ratio"] < 1 for row in found.values())


if __name__ == "__main__":
    sys.exit(main())

"""Writes hybrid_mesh.jsonl: where JAX and PyTorch/XLA put devices with made-up attributes.

Needs jax 0.10.2 and numpy. What the main branch of JAX has changed since is changed here too: prime
factors are right for every size, and two more names of devices are known. Where the argument names
the file distributed/spmd/xla_sharding.py of torch_xla 2.9.0, its HybridMesh is asked as well (its
source alone is read: no torch is needed).

  python3 gen_hybrid_mesh.py [XLA_SHARDING_PY] > hybrid_mesh.jsonl
"""

import ast
import collections
import itertools
import json
import math
import random
import sys
import types
from collections.abc import Generator, MutableMapping, Sequence
from typing import Any, Optional, Union

import numpy as np
from jax._src import mesh_utils

rng = random.Random(4)
TWO_CORES = ("TPU v2", "TPU v3", "TPU7x", "TPU7", "TPU8i")


def prime_factors(number):
    number, factors, prime = int(number), [], 2
    while number > 1:
        while number % prime == 0:
            factors.append(prime)
            number //= prime
        prime += 1
    return factors


mesh_utils._get_prime_factors = prime_factors
mesh_utils.device_kind_handler_dict["TPU v5e"] = mesh_utils._v5e_create_device_mesh
mesh_utils.device_kind_handler_dict["TPU v5"] = mesh_utils._v5p_create_device_mesh


class Device:
    """One row of `devices`; see README.md."""

    def __init__(self, row, kind):
        self.row = row
        self.id, self.slice_index, self.process_index, *place = row
        if self.slice_index is None:
            del self.slice_index
        self.device_kind, self.platform = kind, "tpu" if place else "gpu"
        self.core_on_chip = place.pop() if kind in TWO_CORES and place else 0
        if place:
            self.coords = tuple(place)


def checksum(ids):
    total = 0
    for number in ids:
        total = (total * 31 + int(number) + 1) % 1000000007
    return total


def answer(case, ask):
    """Prints the case with what `ask` gives: the ids in mesh order, or that it is refused."""
    try:
        ids = [int(number) for number in ask().flat]
        case["order" if len(ids) <= 32 else "checksum"] = ids if len(ids) <= 32 else checksum(ids)
    except Exception as error:  # whatever the library throws
        case["error"] = type(error).__name__
    print(json.dumps(case, separators=(",", ":")))


def ids_of(mesh):
    return np.vectorize(lambda device: device.id, otypes=[int])(mesh)


def cut(size, parts):
    """Random factors of `size`."""
    shape = [1] * parts
    for prime in prime_factors(size):
        shape[rng.randrange(parts)] *= prime
    return shape


def merged(torus, parts):
    """A mesh for which whole axes of the torus do."""
    shape = [1] * parts
    for size in torus:
        shape[rng.randrange(parts)] *= size
    return shape


def random_torus(limit):
    while True:
        sizes = (1, 2, 2, 2, 3, 4, 4, 4, 5, 6, 7, 8, 8, 10, 12, 14, 15, 16, 22)
        torus = [rng.choice(sizes) for _ in range(rng.randint(1, 5))]
        if math.prod(torus) <= limit:
            return torus


def assign_case(torus, mesh, split):
    case = {"kind": "assign", "torus": torus, "mesh": mesh, "split": split}

    def ask():
        ids = np.arange(math.prod(torus)).reshape(torus)
        ids, matrix = mesh_utils._create_device_mesh_for_nd_torus(
            ids, mesh, allow_split_physical_axes=split)
        case["factors"] = matrix.tolist()
        return ids

    answer(case, ask)


def assign_cases():
    tori = ([2, 2, 1], [2, 2, 4], [4, 4, 4], [4, 4, 8], [4, 8, 8], [8, 8, 8], [8, 8, 16], [8, 8, 1])
    for torus in tori:
        size = math.prod(torus)
        for mesh in ([1, 1, size], [1, size // 4, 4], [1, 4, size // 4], [size // 8, 8], [8, size // 8]):
            if math.prod(mesh) == size:
                assign_case(torus, mesh, False)
                assign_case(torus, mesh, True)
    for torus, mesh in (([5, 4], [2, 10]), ([16, 16, 16], [2, 8, 16, 16]), ([16, 16, 16], [32, 2, 64]),
                        ([16, 16, 16], [8, 8, 8, 8]), ([14, 15], [10, 21]), ([22, 26], [13, 44])):
        assign_case(torus, mesh, True)
    for _ in range(320):
        torus = random_torus(2048)
        parts = rng.randint(1, 5)
        whole = rng.random() < 0.4
        mesh = merged(torus, parts) if whole else cut(math.prod(torus), parts)
        if rng.random() < 0.04:
            mesh[rng.randrange(parts)] *= 2
        assign_case(torus, mesh, not whole or rng.random() < 0.3)
    for _ in range(60):
        torus = random_torus(500)
        assign_case(torus, cut(math.prod(torus), rng.randint(1, 4)), False)


def rows(box, origin=None, first_id=0, slice_index=None):
    """Devices in a box, x fastest, except that a fourth coordinate (the core) is faster still."""
    origin = origin or [0] * len(box)
    axes = [2, 1, 0, 3][:len(box)] if len(box) == 4 else list(range(len(box)))[::-1]
    result = []
    for number, at in enumerate(itertools.product(*(range(box[axis]) for axis in axes))):
        place = [0] * len(box)
        for axis, index in zip(axes, at):
            place[axis] = origin[axis] + index
        result.append([first_id + number, slice_index, number // 4, *place])
    return result


def device_case(kind, mesh, split=False, contiguous=False, devices=None, box=None):
    case = {"kind": "device", "device_kind": kind, "mesh": mesh, "split": split,
            "contiguous": contiguous}
    case.update({"devices": devices} if devices else {"box": box})
    mocks = [Device(row, kind) for row in devices or rows(box)]
    answer(case, lambda: ids_of(mesh_utils.create_device_mesh(
        mesh, mocks, contiguous_submeshes=contiguous, allow_split_physical_axes=split)))


def meshes_of(size, count):
    return [[size]] + [cut(size, rng.randint(2, 3)) for _ in range(count - 1)]


def device_cases():
    topologies = {
        "TPU v2": [[1, 1, 1, 2], [2, 2, 1, 2], [4, 4, 1, 2]],
        "TPU v3": [[2, 2, 1, 2], [4, 4, 1, 2], [2, 4, 1, 2]],
        "TPU v4": [[2, 2, 1], [2, 2, 4], [2, 4, 4], [3, 2, 2]],
        "TPU v4 lite": [[2, 2, 1], [4, 1, 1], [4, 2, 1]],
        "TPU v5 lite": [[2, 2, 1], [4, 1, 1], [4, 2, 1], [2, 4, 1], [2, 2, 2], [4, 4, 1], [8, 4, 1]],
        "TPU v5e": [[2, 2, 1], [2, 2, 2], [4, 4, 1]],
        "TPU v6 lite": [[2, 2, 1], [4, 2, 1], [4, 4, 1]],
        "TPU v5p": [[2, 2, 1], [2, 2, 2], [2, 2, 4]],
        "TPU v5": [[2, 2, 2], [8, 1, 1]],
        "TPU7x": [[1, 1, 1, 2], [2, 2, 1, 2], [2, 2, 2, 2], [2, 2, 4, 2], [4, 2, 1, 2], [2, 1, 2, 2]],
        "TPU7": [[2, 2, 1, 2]],
        "TPU8i": [[2, 2, 1, 1], [2, 1, 1, 2], [2, 2, 1, 2]],
    }
    for kind, boxes in topologies.items():
        for box in boxes:
            for mesh in meshes_of(math.prod(box), 4):
                origin = [rng.choice((0, 0, 2)) for _ in box[:3]] + [0] * (len(box) - 3)
                if kind in ("TPU v2", "TPU v3"):
                    origin[2] = 0
                devices = rows(box, origin)
                if rng.random() < 0.4:
                    rng.shuffle(devices)
                device_case(kind, mesh, rng.random() < 0.6, devices=devices)
    contiguous = {(2, 2, 1): [[2, 2], [4, 1]], (2, 2, 4): [[4, 4], [1, 4, 4], [2, 8]],
                  (4, 4, 4): [[16, 4], [16, 1, 4], [4, 16]], (4, 8, 8): [[64, 4], [4, 64], [4, 1, 64]],
                  (8, 8, 8): [[64, 8], [8, 64]], (8, 16, 16): [[256, 8], [8, 256], [2048]],
                  (4, 4, 8): [[16, 8]]}
    for box, meshes in contiguous.items():
        for mesh in meshes:
            device_case("TPU v4", mesh, False, True, box=list(box))
    for _ in range(8):  # without coordinates
        devices = [[number, None, number // 4] for number in range(12)]
        rng.shuffle(devices)
        device_case("H200", cut(12, 3), devices=devices)
    for holes in range(1, 5):
        devices = rows([2, 3, 2])
        mesh = [12 - holes]
        device_case("TPU v4", mesh, True, devices=rng.sample(devices, 12 - holes))
        devices[3][3:] = devices[holes + 4][3:]  # two at one place
        device_case("TPU v4", [12], True, devices=devices)
    device_case("TPU v4", [4, 2], devices=rows([2, 3, 2]))


def hybrid_devices():
    slices = rng.choice((1, 2, 2, 2, 3, 4, 6))
    box = rng.choice(([2, 2, 1], [2, 2, 1], [1, 2, 2], [2, 2, 2], [4, 2, 1], [4, 1, 1], [3, 2, 1]))
    keys = rng.sample(range(9), slices)
    devices = []
    for key in keys:
        devices += rows(box, first_id=len(devices), slice_index=key)
    if rng.random() < 0.5:
        rng.shuffle(devices)
        for number, device in enumerate(devices):
            device[0] = number
    if rng.random() < 0.5:
        rng.shuffle(devices)
    return slices, math.prod(box), devices


def hybrid_shapes(slices, size):
    rank = rng.randint(1, 3)
    inner, outer = cut(size, rank), cut(slices, rank)
    if rng.random() < 0.06:
        inner[-1] += 1
    if rng.random() < 0.06:
        outer[0] += 1
    return inner, outer


def hybrid_cases():
    for _ in range(110):
        slices, size, devices = hybrid_devices()
        inner, outer = hybrid_shapes(slices, size)
        process = rng.random() < 0.3
        if process:
            for device in devices:
                device[1], device[2] = rng.choice((None, 0)), device[1]
        elif math.prod(outer) > 1 and rng.random() < 0.05:
            for device in devices:
                device[1] = None
        if rng.random() < 0.05:
            devices.pop()
        kind = rng.choice(("", "TPU v4", "TPU v5 lite", "TPU v5p"))
        options = {"process": process, "sorted": rng.random() < 0.6, "split": rng.random() < 0.7}
        case = {"kind": "hybrid", "device_kind": kind, "inner": inner, "outer": outer, **options,
                "devices": devices}
        mocks = [Device(row, kind) for row in devices]
        answer(case, lambda: ids_of(mesh_utils.create_hybrid_device_mesh(
            inner, outer, mocks, process_is_granule=process,
            should_sort_granules_by_key=options["sorted"],
            allow_split_physical_axes=options["split"])))


def torch_xla_class(path):
    """PyTorch/XLA's HybridMesh, over devices that are set as its `attributes`."""
    wanted = {"HybridMesh", "_create_device_mesh_for_nd_torus",
              "_create_device_mesh_for_nd_torus_splitting_axes",
              "_enumerate_feasible_logical_axis_assignments",
              "_prefer_first_logical_axis_assignment", "_generate_logical_mesh"}
    with open(path) as file:
        body = [node for node in ast.parse(file.read()).body if getattr(node, "name", "") in wanted]
    fake = types.SimpleNamespace

    class Mesh:
        def __init__(self, device_ids, mesh_shape, axis_names):
            self.device_ids = device_ids

    scope = {"Mesh": Mesh, "np": np, "collections": collections, "itertools": itertools,
             "defaultdict": collections.defaultdict, "Sequence": Sequence, "Optional": Optional,
             "Union": Union, "Any": Any, "Generator": Generator, "MutableMapping": MutableMapping,
             "_get_prime_factors": prime_factors,
             "xm": fake(xla_device_hw=lambda device: "TPU"), "torch_xla": fake(device=lambda: None),
             "_utils": fake(parse_xla_device=lambda name: ("TPU", int(name)))}
    exec("from __future__ import annotations", scope)
    exec(compile(ast.Module(body, []), path, "exec"), scope)
    attributes = []
    scope["xr"] = fake(global_runtime_device_attributes=lambda: list(attributes),
                       global_runtime_device_count=lambda: len(attributes))
    return scope["HybridMesh"], attributes


def torch_xla_cases(path):
    hybrid_mesh, attributes = torch_xla_class(path)
    for _ in range(60):
        slices, size, devices = hybrid_devices()
        if slices == 1:
            for device in devices:
                device[1] = None
        inner, outer = hybrid_shapes(slices, size)
        if rng.random() < 0.08:
            outer = [1] * len(outer)
        attributes[:] = [{"name": str(number), "coords": place}
                         | ({} if key is None else {"slice_index": key})
                         for number, key, _, *place in devices]
        case = {"kind": "hybrid", "device_kind": "", "inner": inner, "outer": outer,
                "process": False, "sorted": True, "split": True, "devices": devices}
        answer(case, lambda: hybrid_mesh(ici_mesh_shape=inner, dcn_mesh_shape=outer).device_ids)


if __name__ == "__main__":
    assign_cases()
    device_cases()
    hybrid_cases()
    if len(sys.argv) > 1:
        torch_xla_cases(sys.argv[1])

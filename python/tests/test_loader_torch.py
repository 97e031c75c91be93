"""shardwise.torch.Loader: tensors, DataLoader's workers, DeviceMesh, state saved with the model."""

import copy
import gc
import os
import pickle
import weakref

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch, which this environment has not")

import torch
import torch.distributed as dist
from processes import free_port, run_ranks
from torch.utils.data import DataLoader, IterableDataset

import shardwise.torch as swt


def table(n=40):
    return {"x": np.arange(n * 6, dtype=np.float32).reshape(n, 2, 3), "y": np.arange(n, dtype=np.int64)}


def rows(batches):
    return [batch["y"].tolist() for batch in batches]


def test_batches_are_tensors_on_the_loaders_memory():
    loader = swt.Loader({**table(), "b": np.arange(40).astype(ml_dtypes.bfloat16)}, batch_size=8, seed=1)
    for batch in loader:
        assert isinstance(batch, dict) and list(batch) == ["x", "y", "b"]
        assert torch.equal(batch["x"], torch.from_numpy(table()["x"][batch["y"].numpy()]))
        assert batch["b"].dtype == torch.bfloat16 and torch.equal(batch["b"].long(), batch["y"])
        assert batch["x"].data_ptr() % 64 == 0 and batch.mask.dtype == torch.bool and batch.weights.sum() == 1
        batch["x"].add_(1)  # writable
    assert loader.state_dict()["next_batch"] == 5


def test_mask_and_weights_go_with_copies_and_into_other_processes():
    batch = next(swt.Loader({"x": np.arange(3)}, batch_size=2, last_batch="pad", order="sequential"))
    for made in (batch, copy.copy(batch), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):
        assert made.mask.tolist() == [True, True] and made.weights.tolist() == [0.5, 0.5]
        assert made.mask is made.mask and made.index == 0 and made["x"].tolist() == [0, 1]
    batch.mask = None
    assert batch.mask is None


def test_a_batch_keeps_no_loader():
    loader = swt.Loader({"x": np.arange(8)}, batch_size=4)
    batch, gone = next(loader), weakref.ref(loader)
    del loader
    gc.collect()
    assert gone() is None and batch.mask.all()


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_inside_dataloader_workers_every_batch_comes_once_in_order(workers, context):
    if workers == 0 and context == "spawn":
        pytest.skip("without workers there is no start method")
    loader = swt.Loader(table(), batch_size=4, seed=2, epochs=2)
    expected = rows(swt.Loader(table(), batch_size=4, seed=2, epochs=2))
    around = DataLoader(loader, batch_size=None, num_workers=workers,
                        multiprocessing_context=context if workers else None)
    batches = list(around)
    assert rows(batches) == expected
    assert [b.index for b in batches] == list(range(20))


class Epoch(IterableDataset):
    """Gives one epoch of a loader at each iteration."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return self.loader.epoch()


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("records, last_batch", [(40, "drop"), (42, "pad"), (42, "wrap"), (8, "drop")])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_give_the_batches_of_one_epoch_and_no_other(workers, records, last_batch):
    options = {"batch_size": 4, "epochs": 3, "seed": 1, "last_batch": last_batch}
    alone = swt.Loader(table(records), **options)
    around = DataLoader(Epoch(swt.Loader(table(records), **options)), batch_size=None, num_workers=workers, persistent_workers=True)
    for number in range(3 if last_batch == "wrap" else 7):  # a run goes on, unless its end was padded
        expected = [(b.index, b["y"].tolist()) for b in alone.epoch()]
        found = [(b.index, b["y"].tolist()) for b in around]
        assert sorted(found) == expected != [] and (number > 0 or found == expected)
    if last_batch == "wrap":
        with pytest.raises(ValueError, match="padded"):
            list(alone.epoch())


def test_an_epoch_goes_on_in_workers_where_the_loader_stands():
    alone, loader = (swt.Loader(table(), batch_size=4, epochs=2, seed=5) for _ in range(2))
    for _ in range(7):
        next(iter(alone)), next(iter(loader))
    around = DataLoader(Epoch(loader), batch_size=None, num_workers=2)
    expected = [b.index for b in alone.epoch()]
    assert [b.index for b in around] == expected == [7, 8, 9]
    assert [b.index for b in around] == expected  # new workers begin where this process's loader stands


def test_a_loader_that_has_run_goes_on_in_workers():
    loader = swt.Loader(table(), batch_size=4, seed=2)
    expected = rows(swt.Loader(table(), batch_size=4, seed=2))
    found = rows([next(iter(loader)), next(iter(loader))])
    assert found + rows(DataLoader(loader, batch_size=None, num_workers=2, multiprocessing_context="spawn")) == expected


def test_its_state_is_saved_with_the_model(tmp_path):
    model = torch.nn.Linear(3, 3)
    loader = swt.Loader(table(), batch_size=8, seed=6, epochs=2)
    expected = rows(swt.Loader(table(), batch_size=8, seed=6, epochs=2))
    batches = iter(loader)
    found = rows([next(batches), next(batches), next(batches)])
    swt.save(tmp_path / "a", {"model": model, "loader": loader})
    again = swt.Loader(table(), batch_size=8, epochs=2)
    swt.load(tmp_path / "a", {"model": torch.nn.Linear(3, 3), "loader": again})
    assert found + rows(again) == expected


def of_a_mesh(rank, size, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    loader = swt.Loader(table(), {"x": [Shard(0), Shard(2)], "y": [Shard(0), Replicate()]}, mesh=mesh, batch_size=8, seed=4)
    found = [(b["x"].numpy().copy(), b["y"].tolist()) for b in loader]
    dist.destroy_process_group()
    return found


def test_placements_on_a_device_mesh():
    whole = list(swt.Loader(table(), batch_size=8, seed=4))
    for rank, found in enumerate(run_ranks(of_a_mesh, 4, free_port())):
        data, model = divmod(rank, 2)
        for w, (x, y) in zip(whole, found, strict=True):
            assert y == w["y"][4 * data:4 * data + 4].tolist()
            assert (x == w["x"][4 * data:4 * data + 4, :, 2 * model:2 * model + 2].numpy()).all()


def test_len_before_a_fork_starts_no_thread(tmp_path):
    np.arange(40_000, dtype=np.uint16).tofile(tmp_path / "t.bin")
    loader = swt.Loader(f"tokens:{tmp_path}/t.bin?dtype=u16&window=100", batch_size=4, threads=4)
    around = DataLoader(loader, batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert len(around) == 100 and len(list(around)) == 100


def test_a_state_that_is_loaded_while_it_runs_takes_effect():
    expected = rows(swt.Loader(table(), batch_size=8, seed=1))
    loader, found, state = swt.Loader(table(), batch_size=8, seed=1), [], None
    for batch in loader:
        found.append(batch["y"].tolist())
        if len(found) == 1:
            state = loader.state_dict()
        if len(found) == 3:
            loader.load_state_dict(state)
    assert found == expected[:3] + expected[1:]


@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.filterwarnings("ignore")
def test_a_stateful_dataloader_resumes_it(workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata, which this environment has not")

    def around():
        loader = swt.Loader(table(), batch_size=4, epochs=2, seed=3)
        return stateful.StatefulDataLoader(loader, batch_size=None, num_workers=workers)

    expected = rows(swt.Loader(table(), batch_size=4, epochs=2, seed=3))
    before, after = around(), around()
    batches = iter(before)
    found = rows([next(batches) for _ in range(7)])
    after.load_state_dict(before.state_dict())
    assert found + rows(after) == expected


def _rows_of_rank(rank, size, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    data = table(16)
    found = {"alone": rows(swt.Loader(data, batch_size=4, seed=1)),
             "text": rows(swt.Loader(data, batch_size=4, seed=1, mesh="data=2")),
             "all": rows(swt.Loader(data, batch_size=4, seed=1, mesh="batch=1"))}
    with pytest.raises(ValueError, match="mesh of 4 devices in a group of 2 ranks"):
        swt.Loader(data, batch_size=4, mesh="data=4")
    dist.destroy_process_group()
    return found


def test_ranks_of_a_group_share_the_rows_without_a_mesh():
    expected = rows(swt.Loader(table(16), batch_size=4, seed=1))
    first, second = run_ranks(_rows_of_rank, 2, free_port())
    assert first["all"] == second["all"] == expected
    for how in ("alone", "text"):
        assert [a + b for a, b in zip(first[how], second[how])] == expected


def test_a_loop_for_each_epoch_trains_them_all():
    expected = rows(swt.Loader(table(), batch_size=8, seed=1, epochs=3))
    loader = swt.Loader(table(), batch_size=8, seed=1)
    loops = [rows(batch for batch in loader) for _ in range(3)]
    assert sum(loops, []) == expected and [len(loop) for loop in loops] == [len(loader)] * 3


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_persistent_workers_go_on_with_further_epochs_in_order(workers):
    expected = rows(swt.Loader(table(), batch_size=8, seed=1, epochs=3))
    around = DataLoader(swt.Loader(table(), batch_size=8, seed=1), batch_size=None, num_workers=workers,
                        persistent_workers=True)
    assert sum((rows(around) for _ in range(3)), []) == expected


def test_it_is_an_iterator_and_tells_the_names_of_options():
    loader = swt.Loader(table(), batch_size=8, order="sequential")
    assert next(loader)["y"].tolist() == list(range(8))
    with pytest.raises(TypeError, match="unknown option 'num_workers', needed threads="):
        swt.Loader(table(), batch_size=8, num_workers=2)


DTYPES = ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128", "bool", "int8", "float64"]


@pytest.mark.parametrize("name", DTYPES)
def test_tensors_of_any_dtype_are_data(name):
    tensor = torch.arange(12).reshape(4, 3).to(getattr(torch, name))
    from torch.utils.data import TensorDataset

    for source, field in (({"x": tensor}, "x"), ([{"x": row} for row in tensor], "x"), (TensorDataset(tensor), "0"),
                          ([(row, 1) for row in tensor], "0"), ([{"x": list(row)} for row in tensor], "x"), (tensor, "data")):
        batch = next(swt.Loader(source, batch_size=4, order="sequential"))
        assert batch[field].dtype == tensor.dtype
        assert torch.equal(batch[field].to(torch.complex128), tensor.to(torch.complex128))


def test_views_and_gradients_of_tensors_are_data_and_other_layouts_are_told():
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    found = next(swt.Loader({"c": numbers.conj(), "g": torch.ones(2, requires_grad=True)}, batch_size=2, order="sequential"))
    assert found["c"].tolist() == [1 - 2j, 3 + 4j] and found["g"].tolist() == [1, 1]
    for odd, match in ((torch.eye(2).to_sparse(), "layout"), (torch.empty(2, device="meta"), "meta"),
                       (torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8), "quantized")):
        with pytest.raises(NotImplementedError, match=f"'x' .*{match}"):
            swt.Loader({"x": odd}, batch_size=2)

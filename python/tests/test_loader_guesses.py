"""First guesses of those who know other loaders: they work, or the error says in one line what to write."""

import base64
import decimal
import fractions
import io
import struct
import tarfile
import zlib

import numpy as np
import pytest

import shardwise as sw
from shardwise import sources

IMAGES = np.arange(4 * 6 * 6 * 3, dtype=np.uint8).reshape(4, 6, 6, 3)


def images():
    return sources.of({"image": IMAGES, "n": np.arange(4)})


def first(loader):
    with loader:
        return next(loader)


def test_shuffle_is_an_order():
    def rows(**options):
        return [b["n"].tolist() for b in sw.Loader({"n": np.arange(64)}, batch_size=8, **options)]

    assert rows(shuffle=True) == rows() == rows(order="shuffled") == rows(shuffle=None) == rows(shuffle=np.True_)
    assert rows(shuffle=False) == rows(order="sequential") == np.arange(64).reshape(8, 8).tolist()
    assert rows(shuffle=False, order="sequential") == rows(shuffle=False)
    with pytest.raises(sw.InvalidArgument, match="found shuffle=True and order='sequential', needed is one of them"):
        rows(shuffle=True, order="sequential")
    for odd in ("yes", 1, 0):
        with pytest.raises(sw.InvalidArgument, match="shuffle: found .*, needed True or False"):
            rows(shuffle=odd)


def test_shuffle_is_an_order_in_torch_and_jax():
    pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import shardwise.torch as swt

    with swt.Loader({"n": np.arange(64)}, batch_size=8, shuffle=False) as loader:
        assert next(loader)["n"].tolist() == list(range(8))
    jax = pytest.importorskip("jax", reason="needs jax, which this environment has not")
    import shardwise.jax as swj

    sharding = jax.sharding.NamedSharding(jax.make_mesh((1,), ("data",)), jax.sharding.PartitionSpec("data"))
    with swj.Loader({"n": np.arange(64, dtype=np.int32)}, sharding, batch_size=8, shuffle=False) as loader:
        assert next(loader)["n"].tolist() == list(range(8))


def test_normalize_and_axis():
    x = images()
    assert x.normalize("image", 2, 4)[3]["image"].tolist() == ((IMAGES[3].astype(np.float32) - 2) / 4).tolist()
    for axis, dim in ((0, 0), (1, 1), (-2, 1), (-1, 2), (np.int64(1), 1)):
        flipped = np.flip(IMAGES[2], dim)
        assert np.array_equal(x.flip("image", axis=axis, probability=1)[2]["image"], flipped)
        assert np.array_equal(x.flip("image", axis, 1.0)[2]["image"], flipped)
    for odd, said in ((3, "needed one of the 3 dims"), (-4, "needed one of the 3 dims"), (1.5, "needed a whole number"), (None, "dim= and axis=")):
        with pytest.raises(sw.InvalidArgument, match=said):
            x.flip("image", axis=odd)
    with pytest.raises(sw.InvalidArgument, match="needed is one of dim= and axis="):
        x.flip("image", 1, axis=1)


def test_cast_takes_names_of_dtypes():
    assert images().cast("n", "f32")[1]["n"].dtype == images().cast("n", "float32")[1]["n"].dtype == np.float32


LOADER_OPTIONS = {
    "num_workers": "threads=", "filter": ".filter(...)", "collate_fn": "transform=", "drop_last": 'last_batch="drop"', "sampler": "order=",
    "pin_memory": "no such option: batches are aligned", "prefetch_factor": "prefetch=", "persistent_workers": "no such option",
    "batch_sampler": "batch_size=", "worker_init_fn": "transform=", "generator": "seed=", "num_epochs": "epochs=", "timeout": "no such option",
    "drop_remainder": "last_batch=", "buffer_size": "all records are shuffled", "bs": "batch_size=", "world_size": "mesh= and rank=",
    "ragged": "sources.of(source, ragged=", "weights": "sources.mix(", "columns": "fields=", "batchsize": "did you mean batch_size=?",
    "shuffel": "did you mean shuffle=?", "nonsense": "needed one of "}


@pytest.mark.parametrize("name", LOADER_OPTIONS)
def test_options_of_other_loaders_are_told_their_names(name):
    faces = [sw.Loader]
    try:
        import shardwise.torch as swt
        faces.append(swt.Loader)
    except ImportError:
        pass
    for face in faces:
        with pytest.raises(TypeError) as told:
            face({"n": np.arange(8)}, batch_size=2, **{name: 1})
        assert f"unknown option '{name}'" in str(told.value) and LOADER_OPTIONS[name] in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(("ask", "said"), [
    (lambda x: sw.Loader(x, batch_size=2).map, "transform="), (lambda x: sw.Loader(x, batch_size=2).peek, "next(loader)"),
    (lambda x: sw.Loader(x, batch_size=2).filter, "sources.of(source).filter"), (lambda x: sw.Loader(x, batch_size=2).shuffle, "order="),
    (lambda x: sw.Loader(x, batch_size=2).set_epoch, "each loop is another epoch"), (lambda x: sw.Loader(x, batch_size=2).odd, "has no 'odd'"),
    (lambda x: x.resize, "sources.images(folder, height, width"), (lambda x: x.batch, "Loader(source, batch_size=n)"),
    (lambda x: x.select, "take(begin, end)"), (lambda x: x.astype, "cast(field, dtype)"), (lambda x: x.prefetch, "prefetch=n"),
    (lambda x: x.column_names, "fields"), (lambda x: x.peek, "source[0]"), (lambda x: x.odd, "Source has no 'odd'"),
    (lambda x: sw.images, "shardwise.sources.images"), (lambda x: sw.mix, "shardwise.sources.mix"), (lambda x: sw.tokens, "sources.tokens"),
    (lambda x: sw.pack, "sources.of(source).pack("), (lambda x: sw.DataLoader, "Loader(source"), (lambda x: sw.nothing, "'nothing'"),
    (lambda x: sources.parquet, "sources.of(table)"), (lambda x: sources.webdataset, "tar(path"), (lambda x: sources.json, "jsonl(path"),
    (lambda x: sources.nothing, "'nothing'"), (lambda x: sw.ls, "CheckpointManager(root).steps()")])
def test_names_of_other_libraries_say_what_to_write(ask, said):
    with pytest.raises(AttributeError) as told:
        ask(images())
    assert said in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(("call", "said"), [
    (lambda x: sources.tokens("t.bin", length=8), "unknown option 'length', needed window="),
    (lambda x: sources.tokens("t.bin", block_size=8), "needed window="), (lambda x: sources.tokens("t.bin"), "missing a required argument: 'window'"),
    (lambda x: sources.open("tokens:t.bin?length=8"), "length"), (lambda x: x.flip("image", 1, p=0.5), "needed probability="),
    (lambda x: x.normalize("image", mean=1, std=2), "needed stddev="), (lambda x: x.crop("image", size=(2, 2)), "needed shape"),
    (lambda x: x.map(lambda r: r, num_proc=4), "threads=n"), (lambda x: x.map(lambda r: r, batched=True), "one record"),
    (lambda x: x.shuffle(seed=1), "seed=n"), (lambda x: x.shuffle(buffer_size=9), "all records are shuffled"),
    (lambda x: x.pad("image", [1, 1, 0], [1, 1, 0], fill=0), "needed value="),
    (lambda x: sources.mix([x, x], probabilities=[1, 1]), "needed weights"), (lambda x: sources.npy("x.npy", column="x"), "needed field"),
    (lambda x: x.filter(predicate=lambda r: True), "needed keep"), (lambda x: x["image"], "a number, or source[0]['image']"),
    (lambda x: x[0:2], "source.take(begin, end)"), (lambda x: x[1.0], "record is 1.0, needed is a number")])
def test_arguments_of_other_libraries_say_what_to_write(call, said):
    with pytest.raises((TypeError, sw.Error)) as told:
        call(images())
    assert said in str(told.value) and "\n" not in str(told.value) and "incompatible function arguments" not in str(told.value)


def test_texts_and_rows_of_several_lengths_say_what_to_write():
    for rows, said in (([{"s": "text"}] * 4, "leave it out, or encode it"), ([{"x": np.zeros(n)} for n in (1, 2)], "ragged={'x': the most there are}")):
        with pytest.raises(sw.Error) as told:
            list(sw.Loader(rows, batch_size=1, order="sequential"))
        assert said in str(told.value)


def test_a_dataloader_of_torch_is_a_loader():
    pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import shardwise.torch as swt

    with pytest.raises(AttributeError, match=r"no attribute 'DataLoader': needed is Loader\(source, batch_size=n\)"):
        swt.DataLoader
    with pytest.raises(AttributeError, match="no attribute 'nothing'$"):
        swt.nothing


class Frame:
    """Stands for pandas' DataFrame: it has a length, and columns by name."""

    def __init__(self, columns):
        self._columns = columns
        self.columns = [name for name, _ in columns]

    def __len__(self):
        return len(self._columns[0][1])

    def __getitem__(self, name):
        return dict(self._columns)[name]

    def to_numpy(self):
        return np.array([column for _, column in self._columns], dtype=object).T


def frames():
    def stand_in(columns):
        return Frame([(name, np.array(values)) for name, values in columns])

    yield stand_in
    try:
        import pandas
    except ImportError:
        return
    yield lambda columns: pandas.concat([pandas.Series(v, name=n, index=range(9, 9 + len(v))) for n, v in columns], axis=1)


@pytest.mark.parametrize("frame", list(frames()))
def test_a_data_frame_is_fields_of_its_columns(frame):
    x, y, z = [1.5, float("nan"), -2.0], [1, 2, 3], [True, False, True]
    with sw.Loader(frame([("x", x), (7, y), ("z", z)]), batch_size=3, order="sequential") as loader:
        batch = next(loader)
    assert list(batch) == ["x", "7", "z"]
    assert np.array_equal(batch["x"], x, equal_nan=True) and batch["7"].tolist() == y and batch["z"].tolist() == z
    assert [batch[name].dtype for name in batch] == [np.float64, np.int64, np.bool_]
    with pytest.raises(sw.Unsupported) as told:
        sources.of(frame([("x", x), ("s", ["a", "b", "c"]), ("t", np.array([1, 2, 3], "M8[ns]"))]))
    assert "'s' (" in str(told.value) and "'t' (datetime64[ns])" in str(told.value) and 'leave them out, as table[["x", "y"]]' in str(told.value)
    with pytest.raises(sw.InvalidArgument, match="several columns x, needed are distinct names"):
        sources.of(frame([("x", x), ("x", y)]))


class Column:
    """Stands for a column of polars or Arrow."""

    name, dtype = "", np.dtype(np.int64)

    def __len__(self):
        return 3

    def __getitem__(self, record):
        return object()

    def to_numpy(self):
        return np.array([3, 4, 5])

    def __array__(self, *_, **__):
        return self.to_numpy()


def test_a_column_of_a_table_is_a_source():
    assert [r["data"].item() for r in sources.of(Column())] == [3, 4, 5]


def test_a_tab_separates_columns(tmp_path):
    (tmp_path / "t.csv").write_text("a\tb\n1\t2\n")
    assert {name: value.item() for name, value in sources.csv(tmp_path / "t.csv", delimiter="\t")[0].items()} == {"a": 1, "b": 2}


def test_progress_of_images_is_told_their_number(tmp_path):
    """Their total is not known while they are listed: the call waited for ever."""
    pixel = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==")
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        for number in range(3):
            file = tmp_path / "folder" / "a" / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(pixel)
            tar.add(file, f"{number}.png")
    for make, path in ((sources.images, "folder"), (sources.tar, "t.tar")):
        told = []
        source = make(tmp_path / path, 1, 1, labels="none", progress=lambda *counts: told.append(counts))
        assert len(source) == 3 and told[-1][0] == told[-1][1] >= 3


def pixel(value):
    """Returns a PNG of one pixel."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(bytes([0, value]))) + chunk(b"IEND", b""))


def tar_of(path, members):
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return sources.tar(path, 1, 1)


@pytest.mark.parametrize("image, label", [("input.png", "cls"), ("png", "class.cls"), ("input.x.png", "target.cls"), ("png", "cls")])
def test_members_with_names_of_their_own_are_one_sample(tmp_path, image, label):
    """As in WebDataset, the last ending chooses the decoder: "input.png" is an image of that name."""
    black, white = pixel(0), pixel(255)
    members = [("1." + image, white), ("1." + label, b"7"), ("2." + label, b"8"), ("2." + image, black)]
    source = tar_of(tmp_path / "t.tar", members)
    assert [(int(one["label"]), one["image"].ravel()[0] > 0) for one in source] == [(7, True), (8, False)]
    if image == "png" and label == "cls":  # a member by another name takes no part of a sample that lacks its own
        source = tar_of(tmp_path / "u.tar", [*members, ("3.mask.png", white), ("3.cls", b"9")])
        with pytest.raises(sw.Corrupt, match="no image"):
            source[2]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
@pytest.mark.parametrize("make", [sources.csv, sources.jsonl])
def test_another_encoding_is_named(tmp_path, encoding, make):
    (tmp_path / "t").write_text('{"a": 1}\n', encoding)
    with pytest.raises(sw.Corrupt, match=f"found {encoding.upper()}.*iconv -f {encoding.upper()} -t UTF-8"):
        make(tmp_path / "t")


@pytest.mark.parametrize("weights", [[fractions.Fraction(1, 3), fractions.Fraction(2, 3)], [decimal.Decimal("0.5"), decimal.Decimal(1)],
                                     np.array([0.5, 1]), [decimal.Decimal("0.5"), 1.0], [np.array(1), np.array(2)], [np.float16(0.5), 1]], ids=repr)
def test_weights_of_a_mix_are_any_real_numbers(weights):
    x, y = {"x": np.arange(3)}, {"x": np.arange(5)}
    expected = [r["x"].item() for r in sources.mix([x, y], [1, 2])]
    assert [r["x"].item() for r in sources.mix([x, y], weights)] == expected


def test_series_and_tables_of_arrow():
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow, which this environment has not")
    pandas = pytest.importorskip("pandas", reason="needs pandas, which this environment has not")
    for column in (pandas.Series([3, 4, 5], index=[2, 1, 0]), arrow.array([3, 4, 5]), arrow.chunked_array([[3], [4, 5]])):
        assert [r["data"].item() for r in sources.of(column)] == [3, 4, 5]
    assert list(sources.of(pandas.DataFrame({"type": [1], "dtype": [2]})).fields) == ["type", "dtype"]
    table = arrow.table({"x": [1.5, 2.5], "n": [1, 2]})
    assert [(r["x"].item(), r["n"].item()) for r in sources.of(table)] == [(1.5, 1), (2.5, 2)]
    with pytest.raises(sw.InvalidArgument, match="missing values"):
        sources.of(arrow.table({"x": [1, None]}))
    with pytest.raises(sw.Unsupported, match=r"'s' \(string\)"):
        sources.of(arrow.table({"x": [1], "s": ["a"]}))


def test_hdf5_of_texts_says_what_to_write(tmp_path):
    h5py = pytest.importorskip("h5py", reason="needs h5py, which this environment has not")
    with h5py.File(tmp_path / "s.h5", "w") as f:
        f["x"], f["s"], f["b"] = np.arange(3), ["a", "bb", "ccc"], np.array([b"ab", b"cd", b"e"])
        f.create_dataset("v", (3,), dtype=h5py.vlen_dtype(np.int32))
    for names in ({}, {"s": "s"}, {"b": "b"}, {"x": "x", "v": "v"}):
        with pytest.raises(sw.Unsupported) as told:
            sources.hdf5(tmp_path / "s.h5", **names)
        assert "elements are no numbers" in str(told.value) and "hdf5:s.h5?x=x" in str(told.value) and "JSONL" in str(told.value)
    assert len(sources.hdf5(tmp_path / "s.h5", x="x")) == 3


def test_first_guesses_of_loaders_and_checkpoints_say_what_to_write(tmp_path):
    swt = pytest.importorskip("shardwise.torch")
    swj = pytest.importorskip("shardwise.jax")
    data = {"x": np.zeros((4, 2), np.float32)}
    np.savez(tmp_path / "x.npz", **data)
    sw.save(tmp_path / "c", {"w": np.ones(2)})
    manager = sw.CheckpointManager(tmp_path / "run")
    manager.save(3, {"w": np.ones(2)})
    checkpoint = sw.open(tmp_path / "c")
    for call, kind, said in (
            *[(lambda face=face: face.Loader(data, batch=4), sw.WrongType, "batch_size=") for face in (sw, swt, swj)],
            (lambda: swj.Loader(data, batch_size=2, order="shuffled"), sw.WrongType, "missing a required argument: 'sharding'"),
            (lambda: swj.Loader(data, batch_size=2, shardings=None), sw.WrongType, "needed sharding="),
            (lambda: sw.load(tmp_path / "c", map_location="cpu"), sw.WrongType, "shardwise.torch.load_state_dict"),
            *[(lambda face=face: face.CheckpointManager(tmp_path / "run").restore("3"), sw.InvalidArgument, "step '3': needed is an integer")
              for face in (sw, swt, swj)],
            *[(lambda path=path: sw.Loader(path, batch_size=2), sw.InvalidArgument, "needed is sources.of.numpy.load")
              for path in (tmp_path / "x.npz", str(tmp_path / "x.npz"))],
            (lambda: sw.sources.flip, AttributeError, r"needed is sources.of\(source\).flip"),
            (lambda: checkpoint.get_tensor("w"), AttributeError, r"needed is checkpoint\[name\]\[...\]"),
            (lambda: checkpoint.get_slice("w"), AttributeError, r"needed is checkpoint\[name\], which"),
            (lambda: checkpoint.metadata, AttributeError, "needed is user, metrics or tree")):
        with pytest.raises(kind, match=said) as told:
            call()
        assert "\n" not in str(told.value)
    (tmp_path / "d.csv").write_text("a,b\n1,2\n3,4\n")
    assert len(sw.sources.of(tmp_path / "d.csv")) == 2  # a path object works as its text does


def test_take_of_one_number_is_the_first_records():
    whole = sources.of({"x": np.arange(6)})
    for source, needed in ((whole.take(4), [0, 1, 2, 3]), (whole.take(1, 3), [1, 2]), (whole.take(0), [])):
        assert [int(source[i]["x"]) for i in range(len(source))] == needed
    with pytest.raises(sw.InvalidArgument):
        whole.take(7)

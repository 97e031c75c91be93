"""Every binding in use, for test_lifetimes.py: python lifetimes.py CASE MODE FOLDER. MODE: threads, close or daemons."""

import ctypes
import itertools
import os
import sys
import threading
import traceback
from typing import Any

import numpy as np

import shardwise as sw
from shardwise import _core, programs, sources

W = np.arange(300_000, dtype=np.float32).reshape(300, 1000)
# CPython 3.11 crashes if it ends while a thread is being started, without shardwise, too: none is, when it ends here.
STARTING = threading.Lock()
LONG = np.arange(5 << 20, dtype=np.int32)  # a read of it is interrupted, and so runs on a thread of its own


class Case:
    """Calls that several threads make. `covers`: the names in _core that it uses."""

    covers = ""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.count = itertools.count()

    def path(self) -> str:
        return f"{self.folder}/{next(self.count)}"

    def call(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Reading(Case):
    covers = """Reader.close Reader.tensors Reader.read Reader.read_whole Reader.path Reader.step Reader.user Reader.objects
        Reader.pinned Reader.stats Reader.edit Reader.source_boxes Reader.left_out Reader.of"""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        sw.save(folder + "/a", {"w": W, "long": LONG, "note": "x"}, codec="none")
        self.close()

    def call(self) -> None:
        c = self.checkpoint
        reader = c._reader
        assert (c["w"][10:20, ::7] == W[10:20, ::7]).all() and (np.asarray(c["long"]) == LONG).all()
        assert (c.load("w")["w"] == W).all() and len(reader.tensors()) == 2
        assert [reader.path, reader.step, reader.user] == [self.folder + "/a", -1, "{}"] and isinstance(reader.pinned, bool)
        assert "note" in reader.objects and len(reader.stats) == 3 and reader.left_out == []
        assert reader.source_boxes([(0, [1], [2])]) == [("long", [1], [2])]
        edited = sw.load(self.folder + "/a", rename={"w": "v", "note": "n"}, cast={"w": "f64"})
        assert (edited["v"] == W).all() and edited["v"].dtype == np.float64 and edited["n"] == "x"

        def read(boxes: Any) -> None:
            for _, begin, shape, address in boxes:
                memory = (ctypes.c_char * (4 * shape[0] * shape[1])).from_address(address)
                np.frombuffer(memory, np.float32).reshape(shape)[...] = W[begin[0]:begin[0] + shape[0], begin[1]:begin[1] + shape[1]]

        by_python = _core.Reader.of("p", [("w", "f32", list(W.shape))], read, "{}", "", [], 1 << 24)
        with sw.Checkpoint._of(by_python, cast={"w": "f64"}) as c, sw.Checkpoint._of(
                _core.Reader.of("p", [("w", "f32", list(W.shape))], read, "{}", "", [], 1 << 24)) as plain:
            assert (c["w"][2:4] == W[2:4]).all() and (plain["w"][2:4] == W[2:4]).all()

    def close(self) -> None:
        before = getattr(self, "checkpoint", None)
        self.checkpoint = sw.open(self.folder + "/a")
        if before is not None:
            before.close()


class Managing(Case):
    covers = """Manager.save Manager.steps Manager.latest Manager.step Manager.remove Manager.collect_garbage
        Manager.restore Manager.should_save Manager.request_save Manager.reached_preemption Manager.time_left
        Manager.best Manager.pin Manager.unpin Manager.pinned Manager.refuse_existing Manager.begin_later
        Manager.save_together Manager.stats Manager.take_warnings Manager.close Source.name
        SaveTurns.next SaveTurns.finish SaveTurns.add SaveTurns.has SaveTurns.later Turn.begins
        Saving.end Saving.done Saving.wait Saving.see_error Saving.number"""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.manager = sw.CheckpointManager(folder + "/run", keep_every=2, keep_last=3)

    def call(self) -> None:
        step = next(self.count)
        self.manager.save(step, {"w": W}, progress=lambda done, total: None)
        with STARTING:
            pending = self.manager.save_async(step, {"w": W}, existing="replace")
        pending.result()
        core = self.manager._manager
        assert self.manager.steps() and core.steps()
        assert self.manager.should_save(step) and core.time_left() is None and not core.reached_preemption()
        core.request_save()
        core.refuse_existing(2**40)
        core.begin_later(step)
        turns, saving = _core.SaveTurns("replace", False), _core.Saving(step)
        turns.add(saving)
        turn = turns.later()
        with STARTING:
            waits = threading.Thread(target=lambda: (saving.wait(), turn.begins(sw.group.Call())))
            waits.start()
        saving.end(True)
        waits.join()
        assert saving.done() and turns.has(saving) and turns.finish() == saving.number
        saving.see_error()
        assert turns.next(sw.group.Call()) == ("now", None)
        assert core.stats()[0] == 0
        source = _core.Source(
            "w", "f32", list(W.shape), [([0, 0], list(W.shape), W.ctypes.data, list(W.strides))]
        )
        with sw.CheckpointManager(f"{self.folder}/together-{step}") as alone:
            alone._manager.save_together(
                sw.group.Call(),
                sw.group.Call(),
                step,
                [],
                [source],
                "zstd",
                "fail",
                "{}",
                b"",
                lambda said: "",
                1 << 28,
                (0.0, True, 0),
                lambda done, total: None,
            )
            assert (
                alone._manager.restore(sw.group.Call(), sw.load)[0] == step
            )  # no other thread saves there, as it goes back
        for ask in (
            lambda: core.latest(sw.group.Call()),
            core.best,
            lambda: core.pin(step, f"n{step}"),
            core.pinned,
            lambda: core.unpin(f"n{step}"),
            lambda: core.step(step),
            lambda: core.remove(step),
            lambda: core.collect_garbage([]),
            core.take_warnings,
            core.close,
        ):
            try:
                ask()
            except (sw.NotFound, sw.IOFailed, sw.InvalidArgument):  # another thread's save has removed it; no best=
                pass

    def close(self) -> None:
        self.manager.close()


class Attempting(Case):
    covers = "Attempt.directory Attempt.publish Attempt.abandon write_shards save_together hash128"

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.attempt: Any = None

    def call(self) -> None:
        path = self.path()
        self.attempt = attempt = _core.Attempt(path, "fail")
        source = _core.Source("w", "f32", list(W.shape), [([0, 0], list(W.shape), W.ctypes.data, list(W.strides))])
        record = _core.write_shards(attempt.directory, 0, [], [source], "zstd", 1 << 28, 0, lambda done, total: None)
        attempt.publish([record])
        attempt.abandon()
        assert (sw.load(path)["w"] == W).all() and len(_core.hash128(W.ctypes.data, W.nbytes)) == 32
        sw.save(path, {"w": W}, existing="replace", progress=lambda done, total: None)

    def close(self) -> None:
        if self.attempt is not None:
            self.attempt.abandon()


class Squares:
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, record: int) -> Any:
        return {"x": np.float32(record)}


class Batches(Case):
    covers = """Loader.next Loader.close Loader.state Loader.stats Loader.bad_records Loader.step_of Loader.batches_per_epoch
        Loader.batches LoaderOptions.of"""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.loader = sw.Loader(self.source(), batch_size=10, epochs=1000, order="sequential", threads=2)
        self.taken: list[int] = []

    def source(self) -> Any:
        return {"x": np.arange(100_000, dtype=np.float32)}

    def call(self) -> None:
        batch = next(self.loader)
        self.taken.append(batch.index)
        assert batch["x"].tolist() == [self.value(10 * batch.index + k) for k in range(10)]
        assert self.loader.state_dict() and self.loader.stats() and self.loader.bad_records()[0] == 0
        assert self.loader.step_of(11) == (1, 1) and len(self.loader) == 1000 * self.loader.batches_per_epoch

    def value(self, record: int) -> int:
        return record % 100_000

    def close(self) -> None:
        self.loader.close()


class Objects(Batches):
    covers = "Records.of_function"

    def source(self) -> Any:
        return Squares()


class Mapped(Batches):
    covers = "Records.of_arrays"

    def source(self) -> Any:
        return sources.arrays({"x": np.arange(100_000)}).map(lambda record: {"x": np.float32(2 * record["x"])})

    def value(self, record: int) -> int:
        return 2 * (record % 100_000)


class Sources(Case):
    covers = """Records.open Records.size Records.fields Records.read Records.length Records.fingerprint Records.zip
        Records.concat Records.mix Records.shuffle Records.take Records.repeat Records.filter_text Records.filter_function
        Records.pack Records.crop Records.flip Records.pad Records.cast Records.normalise
        set_remote_cache"""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        np.save(folder + "/w.npy", W)
        with open(folder + "/t.jsonl", "w") as file:
            file.writelines(f'{{"t": [{", ".join(["1"] * (1 + k % 5))}]}}\n' for k in range(100))
        self.file = sources.npy(folder + "/w.npy")._records
        self.mapped = sources.of(Squares())._records

    def call(self) -> None:
        _core.set_remote_cache(self.folder + "/cache", 1 << 20)
        opened = _core.Records.open(f"npy:{self.folder}/w.npy")
        ragged = _core.Records.open(f"jsonl:{self.folder}/t.jsonl?t=i64[]")
        for records in (self.file, self.mapped, opened):
            records.fingerprint()
        row = np.empty(1000, np.float32)
        opened.read(7, 0, 0, [row.ctypes.data])
        assert (row == W[7]).all() and opened.size == 300 and len(opened.fields) == 1
        assert ragged.length(4, 0, 0, 0) == 5
        both = _core.Records.concat([opened, opened])
        few = self.mapped.take(0, 100).filter_function(lambda values: True, "all", "")
        made = [both, _core.Records.zip([self.mapped.take(0, 300), _core.Records.open("npy:" + self.folder + "/w.npy?field=y")]),
                _core.Records.mix([both, both], [1, 2], []), both.shuffle(3), few, self.mapped.repeat(2),
                self.mapped.take(0, 50).filter_text("x >= 3", ""), ragged.pack("t", 8, 4), both.crop("x", [10], "centre", [], ""),
                both.flip("x", 0, 0.5, "f"), both.pad("x", [1], [1], 0.0), both.cast("x", "f64"), both.normalise("x", [1.0], [2.0])]
        assert all(one.size > 0 for one in made), [one.size for one in made]


class Converting(Case):
    covers = """verify repair write_parity remove_parity reshard copy_step path_of_url diff stats export_model export_folder import_model
        is_saved known_format model_format SpecRules.parse SpecRules.find SpecRules.unmatched"""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        with sw.CheckpointManager(folder + "/run") as manager:
            manager.save(1, {"w": W})
        self.step = folder + "/run/step-00000001"

    def call(self) -> None:
        def tell(done: int, total: int) -> None:
            pass

        path = self.path()
        assert sw.verify(self.step, progress=tell) and sw.repair(self.step, sources=[self.step], progress=tell)
        assert sw.write_parity(self.step, blocks=1, progress=tell).files == 1
        assert (sw.load(sw.reshard(self.step, path, mesh="x=2", rules="w=x,-", progress=tell))["w"] == W).all()
        assert sw.copy_step(self.step, path + "-copy", progress=tell) == path + "-copy/step-00000001"
        assert _core.path_of_url("s3://bucket/runs?region=x") == "s3://bucket?region=x/runs"
        assert sw.export_model(self.step, path + ".safetensors", progress=tell) == [path + ".safetensors"]
        assert (sw.load(sw.import_model(path + ".safetensors", path + "-b", progress=tell))["w"] == W).all()
        assert _core.is_saved(path + "-b")
        filled = _core.export_folder(path + "-d", "dcp", "fail", lambda folder: open(folder + "/.metadata", "w").close())
        assert filled == [path + "-d/.metadata"]
        assert sw.diff(self.step, path + ".safetensors", progress=tell).equal
        assert sw.stats(path + ".safetensors", progress=tell)["w"].max == W.max()
        rules = _core.SpecRules.parse("w=x,-")
        assert rules.find("w", 2) is not None and rules.unmatched(["w"]) == []


class Values(Case):
    covers = """Mesh.parse Mesh.of Mesh.axes Mesh.size Mesh.device_at Mesh.position_of PartitionSpec.parse
        PartitionSpec.parse_jax PartitionSpec.jax PartitionSpec.padded PartitionSpec.rank Sharding.mesh Sharding.spec
        Sharding.policy Sharding.shard_shape Sharding.box Sharding.replica_id Sharding.num_replicas
        Sharding.is_fully_replicated Sharding.svg TransferPlan.reshard TransferPlan.copies TransferPlan.moved_elements
        TransferPlan.classify advise dtypes explain_reshard from_placements placement_runs to_placements xla_sharding
        device_mesh hybrid_mesh minibatch"""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.mesh = _core.Mesh.parse("x=4,y=2")
        self.cut = _core.Sharding(self.mesh, _core.PartitionSpec.parse("x,-"))

    def call(self) -> None:
        mesh, cut = self.mesh, self.cut
        assert _core.Mesh.of(mesh.axes) == mesh and mesh.size == 8 and mesh.position_of(mesh.device_at(3)) == 3
        spec = _core.PartitionSpec.parse_jax(cut.spec.jax())
        assert spec.padded(2).rank == 2 and cut.mesh == mesh and cut.policy == "ceil"
        assert cut.shard_shape([8, 3]) == [2, 3] and len(cut.box(0, [8, 3])) == 2 and cut.replica_id(1) == 1
        assert cut.num_replicas == 2 and not cut.is_fully_replicated and "svg" in cut.svg([8, 3])
        plan = _core.TransferPlan.reshard(cut, _core.Sharding(mesh, _core.PartitionSpec.parse("-,y")), [64, 64])
        assert plan.copies and plan.moved_elements > 0 and plan.classify()
        assert _core.explain_reshard(cut, cut, [8, 4]) and isinstance(_core.advise(mesh, cut.spec), str) and _core.dtypes()
        placements = _core.to_placements(cut, [8, 4])
        assert _core.from_placements(mesh, placements, [8, 4])[0] is not None
        assert _core.placement_runs(mesh, placements, [8, 4], 0)
        kind, tiled = _core.xla_sharding("{devices=[4,1,2]<=[8] last_tile_dim_replicate}", mesh, 2)
        assert kind == "PARTIAL" and tiled.shard_shape([8, 3]) == [2, 3]
        assert sw.device_mesh({"d": 3}, [sw.Device(7), sw.Device(2), sw.Device(5)]).devices == [2, 5, 7]
        slices = [sw.Device(n, slice_index=n // 2) for n in range(4)]
        assert sorted(sw.HybridMesh((2,), (2,), ("d",), devices=slices).devices) == [0, 1, 2, 3]
        rows = sw.Sharding(sw.Mesh({"d": 4}), "d,-").minibatch((4, 3), 0, lambda device: device // 2)
        assert rows.global_shape == (8, 3)


class Agreeing(Case):
    covers = "CallGroup.duplicate CallGroup.call Call.agree Call.end"

    def call(self) -> None:
        folder = self.path()
        ranks = [sw.group.from_files(folder, rank, 2).duplicate() for rank in range(2)]
        other = threading.Thread(target=ranks[1].agree, args=(lambda: b"b", b"".join, 100, "agree"), daemon=True)
        with STARTING:
            other.start()
        assert ranks[0].agree(lambda: b"a", b"".join, 100, "agree") == b"ab"
        other.join()


class Tiering(Case):
    covers = "Tiers.save Tiers.latest Tiers.stats Tiers.take_warnings Tiers.close Link.put Link.aborted Link.gone"

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.close()

    def call(self) -> None:
        step = next(self.count)
        source = _core.Source("w", "f32", list(W.shape), [([0, 0], list(W.shape), W.ctypes.data, list(W.strides))], listed=True)
        tiers = self.tiers
        tiers.save(step, [source], "none", "fail", "{}", "", 1 << 28, lambda done, total: None)
        found = tiers.latest(lambda manifest: [("w", [1, 0], [2, 1000])])
        # A thread that saves an older step after a newer one of another sets steps aside.
        assert found is not None and found["damaged"] == [], found
        assert found["tier"] == "fast" or "a run that went back" in found["text"], found
        # A process of two, with a link that gives it the other one's messages.
        sent: list[Any] = []
        link = _core.Link(0, 2, lambda *message: sent.append(message), lambda *reason: sent.append(reason), lambda seconds: True)
        link.put(1, 1, 2, b"message")
        link.aborted(1, "reason")
        link.gone(1, "it was closed")
        lonely = _core.Tiers(link, self.path(), self.path(), 1e-3, 1, 1, 2, 1, 0, 0, "none", 1, 2, "raise", 3)
        try:
            lonely.save(1, [source], "none", "fail", "{}", "", 1 << 28)
            raise AssertionError("the other process has gone")
        except sw.Error as error:
            assert "it was closed" in str(error), error
        assert sent
        assert lonely.take_warnings() == [] and lonely.stats(False)[0] == 0
        lonely.close()

    def close(self) -> None:
        before = getattr(self, "tiers", None)
        self.tiers = _core.Tiers(None, self.path(), self.path(), 60.0, 0, 1, 2, 3, 0, 0, "none", 1, 1, "raise", 3)
        if before is not None:
            before.close()


class Planning(Case):
    covers = """Literal.of Literal.hash Graph.parse Graph.load Graph.save Graph.text Graph.size Graph.inputs Graph.outputs Graph.axes
        Graph.marked Graph.marked_inputs Executable.peak_bytes Executable.bytes_by_kind Executable.traffic
        Executable.input_spec Executable.output_spec Executable.page Executable.json Executable.html Executable.suggest Executable.explain Executable.explain_node Executable.run
        Executable.changes Executable.why Executable.why_not Executable.storage Graph.meshes Graph.search Graph.with_written_attention"""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.literal = _core.Literal.of(W)
        self.text = (f'%0 = input() "x" : f32[8, 300] kind=loader\n%1 = literal() {self.literal.hash} : f32[300, 1000]\n'
                     '%2 = dot_general(%0, %1) "bi,io->bo" : f32[8, 1000]\nreturn %2\n')
        self.graph = _core.Graph.parse(self.text, [self.literal])
        self.plan = programs.Program(self.graph.marked_inputs([_core.PartitionSpec.parse("data,-")])).plan("data=4")

    def call(self) -> None:
        path = self.path()
        x = np.ones((8, 300), np.float32)
        for plan in (self.plan, programs.Program(self.graph).mark({"x": "data,-"}).plan("data=4")):
            (y,) = plan.run({"x": x})
            assert np.allclose(y, x @ W) and plan.peak_bytes > W.nbytes and plan.bytes_by_kind and plan.traffic == []
            assert str(plan.spec("x")) == "data,-" and "x" in plan.explain("x") and "%2" in plan.explain("%2")
            assert plan.suggest(1) and str(plan._executable.output_spec(0)) == "data,-"
            assert plan.why("x") and plan.why_not("x", "-,data").now == "data,-" and plan.storage.input_bytes == x.nbytes
            changes, found = plan.changes("tpu-v4"), plan._program.search("data=4", "tpu-v4")
            assert changes.found is not None and found.plans > 0 and changes == plan.changes("tpu-v4")
            assert plan.report("tpu-v4", search=found, changes=changes)
            assert repr(found).startswith("Searched(mesh='data=4', marks={")
            values = [found, changes, plan.storage, plan.why_not("x", "-,data"), *plan._program.inputs,
                      *plan._program.meshes(4)]
            assert all(repr(value) for value in values)
            assert [one.mesh for one in plan._program.meshes(4)] == ["data=4"]
            assert plan.report("tpu-v4").startswith("program: 3 operations on data=4 (4 devices)")
            assert plan.to_json()["operations"] == 3 and "</html>" in plan.to_html()
        self.graph.save(path)
        loaded = programs.load(path)
        assert loaded.text == self.text and len(loaded) == 3 and loaded.run({"x": x}, devices=2)[0].shape == (8, 1000)


CASES = {kind.__name__: kind for kind in (Reading, Managing, Attempting, Batches, Objects, Mapped, Sources, Converting, Values, Agreeing, Tiering, Planning)}
THREADS, CALLS = 3, 4


def main(case: Case, mode: str) -> None:
    wrong: list[str] = []

    def work(calls: int) -> None:
        for _ in range(calls):
            try:
                case.call()
            except sw.Error:
                if mode != "close":
                    wrong.append(traceback.format_exc())
            except Exception:
                wrong.append(traceback.format_exc())

    if mode == "daemons":
        came = [threading.Event() for _ in range(THREADS)]

        def forever(event: threading.Event) -> None:
            while True:
                work(1)
                event.set()

        for event in came:
            threading.Thread(target=forever, args=(event,), daemon=True).start()
        for event in came:
            event.wait()
        STARTING.acquire()
        assert not wrong, wrong[0]
        return  # and Python ends
    threads = [threading.Thread(target=work, args=(CALLS,)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if mode == "close":
            case.close()
        threads[0].join(0.001)
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]
    if mode == "threads" and isinstance(case, Batches):
        assert sorted(case.taken) == list(range(THREADS * CALLS)), case.taken
    case.close()


if __name__ == "__main__":
    os.makedirs(sys.argv[3], exist_ok=True)
    case = CASES[sys.argv[1]](sys.argv[3])
    main(case, sys.argv[2])

"""TensorStore without a layer above it: zarr3, raw, in OCDBT, one commit for all tensors. It syncs by itself."""
import tensorstore as ts

from rival import THREADS, Rival, blocks

RAW = [{"name": "bytes", "configuration": {"endian": "little"}}]


class Measured(Rival):
    def specs(self, path):
        base = {"driver": "file", "path": path + "/"}
        return {name: {"driver": "zarr3", "recheck_cached_data": False, "recheck_cached_metadata": False,
                       "kvstore": {"driver": "ocdbt", "base": base, "path": name + "/"}} for name in self.arrays}

    def context(self):
        """New each time, so that nothing but the page cache is hot."""
        return ts.Context({"cache_pool": {"total_bytes_limit": 0}, "file_io_concurrency": {"limit": 8},
                           "data_copy_concurrency": {"limit": THREADS}, "file_io_sync": True})

    def save(self, path):
        context, commit, opening, writes = self.context(), ts.Transaction(), {}, []
        for name, spec in self.specs(path).items():
            x = self.arrays[name]
            chunk = [min(256, x.shape[0]), x.shape[1]] if x.ndim == 2 else list(x.shape)
            metadata = {"shape": x.shape, "data_type": str(x.dtype), "codecs": RAW,
                        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}}}
            store = ts.open(spec | {"metadata": metadata}, create=True, context=context, transaction=commit)
            opening[name] = store, chunk[0]
        for name, (store, rows) in opening.items():
            store, x = store.result(), self.arrays[name]
            writes += [store[r:r + rows].write(x[r:r + rows], can_reference_source_data_indefinitely=True)
                       for r in range(0, x.shape[0], rows)]
        commit.commit_async().result()
        for write in writes:
            write.result()

    def stores(self, path):
        context = self.context()
        opening = {n: ts.open(s, open=True, read=True, context=context) for n, s in self.specs(path).items()}
        return {name: store.result() for name, store in opening.items()}

    def restore(self, path):
        reading = {name: store.read() for name, store in self.stores(path).items()}
        return {name: read.result() for name, read in reading.items()}

    def resharded(self, path):
        reading = {name: [(box, store[box].read()) for box in blocks(store.shape)]
                   for name, store in self.stores(path).items()}
        return {name: [(box, read.result()) for box, read in reads] for name, reads in reading.items()}

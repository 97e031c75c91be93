"""Orbax on eight host devices, OCDBT and zarr3: zstd, its default, or uncompressed. It syncs by itself."""
import logging
import os
import warnings

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np
import orbax.checkpoint as ocp

from rival import TURNED, Rival

logging.disable(logging.WARNING)
warnings.simplefilter("ignore")


def sharding(mesh):
    spec = PartitionSpec("data", "model") if len(mesh) == 2 else PartitionSpec()
    devices = np.array(jax.devices()[:int(np.prod(mesh))]).reshape(mesh)
    return NamedSharding(Mesh(devices, ("data", "model")[:len(mesh)]), spec)


class Measured(Rival):
    def __init__(self, case, tensors):
        self.shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in tensors.items()}
        # Small tensors lie whole on one device: eight shards of each would take eight times as long.
        self.saved = sharding((4, 2) if next(iter(self.shapes.values())).ndim == 2 else (1,))
        tree = {name: jax.device_put(np.array(x), self.saved) for name, x in tensors.items()}
        self.tree = jax.block_until_ready(tree)
        options = {} if case == "zstd" else {"use_compression": False}
        self.checkpointer = ocp.AsyncCheckpointer(
            ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True, **options))

    def save(self, path):
        self.checkpointer.save(path, args=ocp.args.PyTreeSave(self.tree))
        self.checkpointer.wait_until_finished()

    def load(self, path, layout):
        wanted = {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout) for name, x in self.shapes.items()}
        arguments = ocp.checkpoint_utils.construct_restore_args(wanted)
        return jax.block_until_ready(
            self.checkpointer.restore(path, args=ocp.args.PyTreeRestore(item=wanted, restore_args=arguments)))

    def restore(self, path):
        return self.load(path, self.saved)

    def resharded(self, path):
        return self.load(path, sharding(TURNED))

    def parts(self, restored):
        return {name: [(shard.index, np.asarray(shard.data)) for shard in x.addressable_shards]
                for name, x in restored.items()}

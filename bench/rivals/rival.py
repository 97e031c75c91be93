"""What worker.py needs of a rival. Each module rival_NAME.py has a class Measured that is one."""
import os

import numpy as np

THREADS = min(8, os.cpu_count())
TURNED = (2, 4)  # the mesh that a checkpoint of a 4x2 mesh is restored onto


def blocks(shape):
    """The boxes of the mesh TURNED."""
    height, width = shape[0] // TURNED[0], shape[1] // TURNED[1]
    return [(slice(r, r + height), slice(c, c + width))
            for r in range(0, shape[0], height) for c in range(0, shape[1], width)]


class Rival:
    """Saves and restores one dict of arrays. A process of several has its part of them."""
    processes = 1
    open = None       # open(path): reads what there is, not the data; absent where there is no such thing
    resharded = None  # resharded(path): a restore onto the mesh TURNED; absent where there are no meshes

    def __init__(self, case, tensors):
        """tensors: name -> array that is mapped from a file; saves use a copy in memory."""
        self.case = case
        self.arrays = {name: np.array(x) for name, x in tensors.items()}

    def save(self, path):
        """worker.py syncs unsynced files, within the time."""
        raise NotImplementedError

    def restore(self, path):
        raise NotImplementedError

    def parts(self, restored):
        """For each tensor, by name: [(index, restored tensor[index])]. Not measured."""
        return {name: x if isinstance(x, list) else [((), x)] for name, x in restored.items()}

    def barrier(self):
        """Waits for the other processes."""

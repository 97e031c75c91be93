"""Writes savez.npz, what numpy.savez makes of one array of each type that examples/gpt reads."""
import numpy as np

np.savez("savez.npz", f4=np.arange(6, dtype="<f4").reshape(2, 3) / 4, f8=np.array([-1.5, 1e300]), i4=np.int32(-7),
         i8=np.arange(24, dtype="<i8").reshape(2, 3, 4) * 2**33, empty=np.zeros((0, 5), np.float32))

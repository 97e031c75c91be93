"""Programs of modules of StableHLO. What reads them is imported with the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING

from .._progress import WorkLine
from .._sharding import Mesh

if TYPE_CHECKING:
    from ..programs import Program


def from_stablehlo(module: str | bytes | PathLike[str], *, names: Sequence[str] | None = None, kinds: Mapping[str, str] | None = None,
                   mesh: str | Mesh | Mapping[str, int] | None = None, progress: bool = True) -> Program:
    """The program of a module of StableHLO: its text (jax.jit(step).lower(..).as_text(debug_info=True)), bytecode, a portable
    artifact (jax.export's mlir_module_serialized), or a file of one of these, as a path.

    Inputs are called by names, one for each argument of @main; else as the arguments' locations say, params['w'] as "params/w";
    else "arg0". kinds: as capture() has it. What is donated (tf.aliasing_output, jax.buffer_donor) is a parameter, unless its name
    says that it is the optimizer's. Shardy's annotations are marks over the axes that they name. GSPMD's name none: they are read over
    `mesh`; without it, over the coarsest mesh that they all cut along whole axes, called axis_0, axis_1, ..

    progress: as capture() has it. run() takes what the step takes, as pytrees or one mapping of labels to arrays, and gives a list of arrays.

    Raises Unsupported, naming each operation that no program has, how often it is there, and the line and scope of the first; or the
    line of a shape that depends on data. Raises InvalidArgument for what is no module of StableHLO, NotFound for a file that is not there."""
    from ._hlo_module import imported

    with WorkLine("read StableHLO", progress):
        return imported(module, names, kinds or {}, None if mesh is None else mesh if isinstance(mesh, Mesh) else Mesh(mesh))

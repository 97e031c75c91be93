"""Writes the nodes of a graph of ATen operations by their rules, and makes rules of traced functions of
torch."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd.functional_utils import to_fun
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.utils import _pytree as pytree

from ...._arrays.torch_tensors import TORCH
from ...._programs.text import Function, Node, Number, Refused, Value
from ..trace import graph_of, plain, without_memory
from . import complex as _aten_complex
from .rules import NUMBERS, RULES, Builder, Type, literal


def result_of(build: Builder, node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Any:
    """Returns the result of an operation whose operands have values. Raises Refused."""
    if node.target is operator.getitem:
        several, place = node.args
        return values[several][place]  # type: ignore[index]
    if node.target in NUMBERS:
        operands: Any = torch.fx.node.map_arg(node.args, values.__getitem__)
        return NUMBERS[node.target](build, *operands)
    if not isinstance(node.target, torch._ops.OpOverload):
        raise Refused
    name = node.target._schema.name.partition("::")[2]
    build.examples = [_example(arg) for arg in node.args]
    build.draw = node.meta.get("custom", {}).get("draw", 0)
    out = each(node.meta["val"], Type.of)
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    rule = RULES.get(name) or RULES.get(name.removesuffix("_copy"))
    if _aten_complex.is_complex(args) or (_aten_complex.is_complex(out) and name not in ("alias", "detach")):
        rule = _aten_complex.rule_of(name)
    if rule is None:
        raise Refused
    made = _applied(rule, build, out, *args, **kwargs)
    _check(name, made, out)
    return made


def _example(arg: Any) -> Any:
    """Returns an operand as torch knows it. A Python number stands for a computed number, as torch converts
    both to the dtype of tensors."""
    value = arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg
    return 1.0 if isinstance(value, torch.SymFloat) else 1 if isinstance(value, torch.SymInt) else value


def each(value: Any, of: Callable[[torch.Tensor], Any]) -> Any:
    return [None if one is None else of(one) for one in value] if isinstance(value, (list, tuple)) else of(
        value)


def _applied(rule: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Applies a rule. Raises Refused for arguments that the rule does not know."""
    try:
        return rule(*args, **kwargs)
    except TypeError as error:
        try:
            inspect.signature(rule).bind(*args, **kwargs)
        except TypeError:
            raise Refused(f"found other arguments than its rule knows ({error})") from None
        raise


def _check(name: str, made: Any, out: Any) -> None:
    pairs = zip(made, out, strict=True) if isinstance(out, list) else [(made, out)]
    for value, wanted in pairs:
        if value is None:
            continue
        # The length of such a result follows from values; the rule gives the longest.
        is_selected = any(type(n) is not int for n in wanted.shape)
        if value.dtype != wanted.dtype or (value.shape != wanted.shape if not is_selected
                                           else len(value.shape) != len(wanted.shape)):
            raise AssertionError(f"{name}: the rule gave {value.dtype}{list(value.shape)}, "
                                 f"torch {wanted.dtype}{list(wanted.shape)}")


# Rules that are functions of torch.


def composed(*names: str) -> Callable[[Function], Function]:
    """Makes a function of torch the rule of these operations. The function takes their arguments, uses
    operations that have rules, and may ask autograd for gradients. It may return None for a result that only
    torch's own gradient needs."""

    def add(function: Function) -> Function:
        RULES.update(dict.fromkeys(
            names, lambda build, out, *args, **kwargs: _as_traced(function, build, out, args, kwargs)))
        return function

    return add


def _as_traced(function: Callable[..., Any], build: Builder, out: Any, args: tuple[Any, ...],
               kwargs: dict[str, Any]) -> Any:
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise Refused(f"found other arguments than its rule knows ({error})") from None
    leaves, tree = pytree.tree_flatten((args, kwargs))
    operands = [leaf for leaf in leaves if isinstance(leaf, (Node, Number))]

    def of(*tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        own_args, own_kwargs = pytree.tree_unflatten([next(given) if isinstance(leaf, (Node, Number))
                                                      else leaf for leaf in leaves], tree)
        return function(*own_args, **own_kwargs)

    return as_results(build, out, written(build, of, operands))


def as_results(build: Builder, out: Any, values: Sequence[Any]) -> Any:
    """Returns results in torch's form. None stands for a result that only torch's own gradient needs, and
    that is refused if used."""
    results = [one and build.refused("a result that only torch's own gradient uses", [], one.dtype, one.shape)
               if value is None else value
               for value, one in zip(values, out if isinstance(out, list) else [out], strict=True)]
    return results if isinstance(out, list) else results[0]


def written(build: Builder, function: Callable[..., Any], operands: Sequence[Value]) -> list[Any]:
    """Writes a function of torch, and returns its results. Each may be None."""

    def functional(tensors: list[torch.Tensor]) -> list[Any]:
        with FunctionalTensorMode(), torch.enable_grad():
            made = function(*map(to_fun, tensors))
            return [plain(one) for one in (made if isinstance(made, (list, tuple)) else [made])]

    with without_memory():
        graph = graph_of(functional, [torch.empty(x.shape, dtype=TORCH[x.dtype]) for x in operands])
    values: dict[torch.fx.Node, Any] = {}
    inputs = iter(operands)
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(inputs)
        elif node.op == "get_attr":
            values[node] = literal(build, getattr(graph, str(node.target)))
        elif node.op == "call_function":
            values[node] = result_of(build, node, values)
    returned: Sequence[Any] = next(node for node in graph.graph.nodes if node.op == "output").args[0]
    return [None if node is None else values[node] for node in returned]


def looped(build: Builder, body: Callable[..., Any], carry: Sequence[Value], xs: Sequence[Value] = (),
           length: int | None = None, consts: Sequence[Value] = (), reverse: bool = False) -> list[Value]:
    """Writes a scan whose body is a function of torch, which takes the consts, the carry, and a slice of each
    of the xs."""
    trips = xs[0].shape[0] if length is None else length
    return build.scan(consts, carry, xs, trips, reverse, lambda values: written(build, body, values))


def gradients(made: torch.Tensor, of: Sequence[torch.Tensor], gradient: torch.Tensor) -> list[torch.Tensor]:
    """Returns the gradients of a function of torch by autograd."""
    return list(torch.autograd.grad(made, of, gradient, allow_unused=True, materialize_grads=True))

"""Traces a training step as one graph of ATen operations, by make_fx over tensors without memory. Updates in
place become new values."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd.functional_utils import from_fun, to_fun
from torch._subclasses.fake_tensor import (DataDependentOutputException, DynamicOutputShapeException,
                                           FakeTensorMode)
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.nn.modules import module as nn_module
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ... import __file__ as _PACKAGE
from ..._errors import InvalidArgument, Unsupported
from ..._programs.text import FUSED_ATTENTION
from ..._progress import count_operation
from .checks import Assumptions, line_of_step
from .constants import Constants
from .decompositions import decompositions
from .fused_attention import FusedAttention
from .ops import ctc as _aten_ctc
from .patches import Functions, alone, methods_of, patched
from .step_state import MOST_HOLDERS, Slot, StepState, parts_of
from .variables import NEEDED, Variables, is_plain, memory_of

_aten = torch.ops.aten

_NO_VALUES = "a step whose operations do not depend on values"
#: The found and needed parts of an error, by a part of torch's message.
_IN_WORDS = {
    ".numpy() is not supported": ("the values of a tensor", _NO_VALUES),
    "its data is not allocated yet": ("the values of a tensor", _NO_VALUES),
    "non-infra torch dispatch mode present": ("code that torch compiles by itself", _NO_VALUES),
    "mutating a non-functional tensor": ("a change of a tensor that the step holds",
                                         "one of a module, as register_buffer() makes it, or a new value"),
    "storage of SparseTensorImpl": ("a sparse tensor", "one with all of its elements: sparse=False"),
}
_INDEXED = (_aten.masked_select.default, _aten.index.Tensor, _aten.index_put.default,
            _aten.index_put_.default, _aten._index_put_impl_.default)
_COMPUTED = (torch.Tensor, torch.SymFloat, torch.SymInt, torch.SymBool)


@dataclasses.dataclass
class Traced:
    """A traced step. The placeholders of the graph are `inputs`. Its outputs are the leaves of the step's
    result, then the new state for each of the first inputs."""

    graph: torch.fx.GraphModule
    inputs: list[Slot]
    state: int  #: the number of inputs that are state
    arguments: pytree.TreeSpec
    #: the leaves of the arguments, which are part of the program; torch.Tensor stands for a tensor
    numbers: list[Any]
    result: pytree.TreeSpec  #: the tree of the step's result
    leaves: list[Any]  #: leaves of the result, with the type of each computed leaf
    needs: list[Callable[[], None]]  #: checks of each run: StepState.modes and StepState.numbers
    asked: dict[str, tuple[torch.Tensor, str]]  #: Constants.asked
    assumed: list[str]  #: the lines of checks that pass by assumption

    @property
    def results(self) -> int:
        """Returns the number of tensors that the step returns."""
        return sum(leaf in _COMPUTED for leaf in self.leaves)

    def result_of(self, tensors: Sequence[torch.Tensor]) -> Any:
        given = iter(tensors)
        made = [next(given) if leaf is torch.Tensor else next(given).item() if leaf is torch.SymFloat
                else leaf for leaf in self.leaves]
        return pytree.tree_unflatten(made, self.result)


@alone()
def trace(step: Callable[..., Any], example: Sequence[Any], uses: Sequence[Any], static: Sequence[str] = (),
          assume: Iterable[str] = ()) -> Traced:
    """Traces a step. Raises Unsupported if the step asks for the value of a tensor, or keeps a tensor that no
    run would have."""
    fake_mode, assumptions = without_memory(), Assumptions(assume)

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        device = "cpu" if tensor.device.type == "meta" else tensor.device
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)

    state, seen = StepState(step, uses), set[int]()
    variables = Variables(state.containers)
    need_numbers, need_modes, sets_modes = state.numbers(), state.modes(), list[torch.nn.Module]()
    paths, treespec = pytree.tree_flatten_with_path(tuple(example))
    arguments = [Slot(_argument_name(step, path), "loader", leaf)
                 for path, leaf in paths if isinstance(leaf, torch.Tensor)]
    leaves = [leaf for _, leaf in paths]
    known = [slot.label for slot in arguments]
    for name in static:
        if not any(label == name or label.startswith(f"{name}.") for label in known):
            raise InvalidArgument(
                f"capture: static: found {name!r}, needed one of the step's tensors: {', '.join(known)}"
            )
    for path, leaf in paths:
        _need_no_holder(_argument_name(step, path), leaf)
    with (variables.kept(_line_of_definition(step), seen), _counted_draws(), patched(), fake_mode,
          in_words()):
        assert fake_mode.shape_env is not None
        with fake_mode.shape_env.ignore_fresh_unbacked_symbols():  # an optimizer's step makes its state
            slots = state.slots(fake)
        fakes = [fake(slot.tensor) for slot in [*slots, *arguments]]
        returned: list[Any] = []
        constants, fused = Constants(static), FusedAttention()

        def functional(tensors: list[torch.Tensor]) -> list[Any]:
            with FunctionalTensorMode(), fx_traceback.preserve_node_meta():
                own = [to_fun(tensor) for tensor in tensors]
                for slot, tensor in zip(slots, own, strict=False):
                    tensor.requires_grad_(slot.tensor.requires_grad)
                    _hook_as(tensor, slot.tensor)
                for slot, tensor in zip(arguments, own[len(slots):], strict=True):
                    constants.give(slot.label, tensor, slot.tensor)
                given = iter(own[len(slots):])
                values = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
                gradients = _Gradients({slot.label: tensor for slot, tensor in zip(slots, own, strict=False)
                                        if tensor.requires_grad})
                with state.replaced(slots, own[:len(slots)]) as now, state.guarded() as elsewhere, \
                        _scopes(state, gradients, _ScopeMode(gradients, elsewhere, constants, variables, seen,
                                                             fused, assumptions)):
                    made, result = pytree.tree_flatten(step(*pytree.tree_unflatten(values, treespec)))
                    returned[:] = [result, [_kind_of(leaf) for leaf in made]]
                    made = [leaf for leaf in made if _kind_of(leaf) in _COMPUTED]
                    gradients.need_cleared()
                    if any(_follows_from_values(leaf) for leaf in made):
                        raise DynamicOutputShapeException(_aten.masked_select.default)
                    state_now = [plain(value) for value in now()]
                    for slot, new in zip(slots, state_now, strict=True):
                        if new.shape != slot.tensor.shape:
                            raise Unsupported(f"capture: {slot.label}: found that the step makes it "
                                              f"{list(new.shape)}, it is {list(slot.tensor.shape)}, "
                                              "needed a step that leaves its shape, "
                                              "as it may once torch has made one")
                    return [*(plain(value) for value in made), *state_now]

        with fused.traced(), methods_of(state.modules, sets_modes):
            graph = graph_of(functional, fakes)
    numbers = [torch.Tensor if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return Traced(graph, [*slots, *arguments], len(slots), treespec, numbers, returned[0], returned[1],
                  [need_numbers, *([] if sets_modes else [need_modes])], constants.asked,
                  list(assumptions.used))


def origin_of(node: torch.fx.Node) -> torch.fx.Node:
    """Returns the node whose alias a value is."""
    while node.op == "call_function" and node.target in (_aten.alias.default, _aten.detach.default):
        node = node.args[0]  # type: ignore[assignment]
    return node


def is_computed_with(node: torch.fx.Node) -> bool:
    """Returns True if the step uses a value otherwise than to return it."""
    same = _aten.alias.default, _aten.detach.default
    return any(
        user.op != "output" and (user.target not in same or is_computed_with(user)) for user in node.users
    )


def _need_no_holder(label: str, argument: Any) -> None:
    """Raises InvalidArgument for a module or an optimizer, and for a tensor in an object that is not a dict,
    list or tuple, as tensors in such an argument would be constants of the program."""
    open_, seen = deque([(label, argument)]), dict[int, Any]()
    while open_ and len(seen) < MOST_HOLDERS:
        name, holder = open_.popleft()
        if isinstance(holder, (torch.nn.Module, torch.optim.Optimizer, LRScheduler)):
            raise InvalidArgument(f"capture: found {type(holder).__name__} in the argument {name!r}, "
                                  "needed tensors there: let the step use it from outside, "
                                  "as in capture(lambda x: model(x), x), or name it in uses=")
        if isinstance(holder, torch.Tensor) and holder is not argument:
            raise InvalidArgument(f"capture: found a tensor in the argument {name!r}, "
                                  f"in an object of {type(argument).__name__}, needed tensors as arguments, "
                                  "or in dicts, lists and tuples: dict(batch), vars(batch)")
        if id(holder) not in seen:
            seen[id(holder)] = holder
            open_ += ((f"{name}.{part}", value) for part, value in parts_of(holder))


def _kind_of(leaf: Any) -> Any:
    return next((kind for kind in _COMPUTED if isinstance(leaf, kind)), leaf)


def _follows_from_values(leaf: Any) -> bool:
    """Returns True if the shape of a tensor follows from values."""
    return isinstance(leaf, torch.Tensor) and any(type(n) is not int for n in leaf.shape)


def plain(value: Any) -> Any:
    """Returns the present value of a tensor as a node without changes in place."""
    if not isinstance(value, torch.Tensor):
        return value
    made = from_fun(value.detach())
    assert isinstance(made, torch.Tensor)
    return made


def without_memory() -> FakeTensorMode:
    """Returns a mode whose tensors have no memory, and whose numbers of .item() are symbols."""
    return FakeTensorMode(allow_non_fake_inputs=True,
                          shape_env=ShapeEnv(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=False))


def graph_of(functional: Callable[..., Any], fakes: list[torch.Tensor]) -> torch.fx.GraphModule:
    """Returns the graph of a function of tensors without memory, in operations that have rules."""
    return make_fx(functional, decomposition_table=decompositions())(fakes)


def _hook_as(tensor: torch.Tensor, parameter: torch.Tensor) -> None:
    """Registers the gradient hooks of a parameter for a tensor."""
    for hook in (parameter._backward_hooks or {}).values():
        tensor.register_hook(hook)  # type: ignore[no-untyped-call]
    for hook in (parameter._post_accumulate_grad_hooks or {}).values():
        tensor.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]


class _Gradients:
    """Finds parameters to whose gradients the next step would add. Each parameter has a gradient of the step
    before, which this step must clear before it derives the parameter, or before it ends."""

    def __init__(self, parameters: dict[str, torch.Tensor]) -> None:
        self._parameters = parameters
        self._before = {label: torch.zeros_like(parameter) for label, parameter in parameters.items()}
        self._zero: dict[int, Any] = {}  #: gradients that are zero, by id
        self._added_to: set[str] = set()
        for label, parameter in parameters.items():
            parameter.grad = self._before[label]
            parameter.register_hook(functools.partial(self._derived, label))  # type: ignore[no-untyped-call]

    def set_to_zero(self, tensors: Sequence[Any]) -> None:
        self._zero.update((id(tensor), tensor) for tensor in tensors)

    def _derived(self, label: str, _: torch.Tensor) -> None:
        """Notes a gradient of a parameter. A gradient that the step has not cleared counts as empty."""
        parameter = self._parameters[label]
        before = parameter.grad is self._before[label]
        if before and id(parameter.grad) not in self._zero:
            self._added_to.add(label)
        if before:
            parameter.grad = None
        self._zero.pop(id(parameter.grad), None)

    def without_those_before(self, parameters: Iterable[torch.Tensor]) -> None:
        """Hides gradients that the step does not derive from an optimizer that steps."""
        own = set(map(id, parameters))
        for label, parameter in self._parameters.items():
            if id(parameter) in own and parameter.grad is self._before[label]:
                parameter.grad = None

    def need_cleared(self) -> None:
        """Raises InvalidArgument if the step leaves gradients to the next step."""
        left = [label for label in self._parameters if label in self._added_to
                and (grad := self._parameters[label].grad) is not None and id(grad) not in self._zero]
        if left:
            raise InvalidArgument(f"capture: found gradients that the step leaves to the next one ({left[0]} "
                                  "has one), needed a step that clears them: optimizer.zero_grad()")


class _ScopeMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that writes its module to each node of the graph. The module of a gradient is that of the
    derived operation."""

    supports_higher_order_operators = True  # so that an error names them, as no program has them

    def __init__(self, gradients: _Gradients, elsewhere: dict[int, str], constants: Constants,
                 variables: Variables, seen: set[int], fused: FusedAttention,
                 assumptions: Assumptions) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._gradients, self._constants, self._elsewhere = gradients, constants, elsewhere
        self._variables, self._seen, self._fused, self._assumptions = variables, seen, fused, assumptions
        #: names of tensors in the step's variables whose views the step has taken
        self.viewed: dict[str, None] = {}
        self.path: list[str] = [""]
        self._of_sequence: dict[int, str] = {}
        self._kernels: dict[str, list[int]] = {}  #: calls of fused attention, by scope

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        count_operation("traced")
        self._need_known((args, kwargs), func)
        if isinstance(func, torch._ops.OpOverload) and func._schema.is_mutable:
            self._need_own(func, args)
        if (
            isinstance(func, torch._ops.OpOverload)
            and func.is_view
            and (label := self._variables.label(args[0])) is not None
        ):
            self.viewed[label] = None
        derived = torch._C._current_autograd_node()
        scope = self.path[-1] if derived is None else self._of_sequence.get(derived._sequence_nr(), "")
        if self._fused.is_open:
            scope = self._kernel_in(scope)
        elif derived is not None and torch.is_grad_enabled():  # a checkpoint of the user recomputes
            scope = self._outside(scope)
        if derived is None or self._fused.is_open:
            self._of_sequence[torch.autograd._get_sequence_nr() - 1] = scope  # type: ignore[attr-defined]
        if func in (_aten.zero_.default, _aten._foreach_zero_.default):
            self._gradients.set_to_zero(args[0] if isinstance(args[0], (list, tuple)) else args)
        fx_traceback.current_meta["custom"] = {"scope": scope, "backward": derived is not None}
        if func is _aten._linalg_check_errors.default:
            return None
        if func is _aten.equal.default:
            is_equal: bool | None = self._constants.asked_result(torch.equal, args, {}, line_of_step())
            if is_equal is not None:
                return is_equal
        if func is _aten._local_scalar_dense.default:
            is_check = args[0].dtype == torch.bool
            passing = self._assumptions.passing_value() if is_check else None
            if passing is not None:
                return passing
            known = self._constants.asked_value(args[0], line_of_step())
            if known is not None:
                return known.item()
            if not args[0].is_floating_point():
                raise _Asked(func, is_check, self._constants.follows_from(args[0]))
        if not isinstance(func, torch._ops.OpOverload):
            return func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            fx_traceback.current_meta["custom"]["draw"] = _next_draw()
        # An index of numbers gives a known shape.
        if torch.Tag.dynamic_output_shape in func.tags and func is not _aten.index.Tensor:
            found = self._constants.asked_result(func, args, kwargs or {}, line_of_step())
            if found is not None:
                own = next(leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor))
                return pytree.tree_map_only(torch.Tensor, lambda value: self._literal(value, own), found)
        if func in _INDEXED:
            func, args, kwargs = self._by_places(func, args, kwargs or {})
        try:
            result = func(*args, **(kwargs or {}))
        except DynamicOutputShapeException as error:
            operands = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
            setattr(error, "arguments", frozenset[str]().union(*map(self._constants.follows_from, operands)))
            raise
        self._constants.note(func, args, kwargs or {}, result)
        return result

    def _outside(self, scope: str) -> str:
        outer, _, last = scope.rpartition("/")
        return outer if last.startswith(FUSED_ATTENTION) else scope

    def _kernel_in(self, scope: str) -> str:
        """Returns the scope of the kernel that is being traced; a second kernel in a scope has a number. A
        gradient has the scope of its operations."""
        if self._outside(scope) != scope:
            return scope
        calls = self._kernels.setdefault(scope, [])
        if self._fused.calls not in calls:
            calls.append(self._fused.calls)
        number = calls.index(self._fused.calls) + 1
        return f"{scope}/{FUSED_ATTENTION}{f' [{number}]' if number > 1 else ''}".removeprefix("/")

    def _by_places(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        """Returns the call with each known mask replaced by the places that it selects."""
        if func is _aten.masked_select.default and args[0].shape == args[1].shape:
            places = self._places_in(args[1])
            return (func, args, kwargs) if places is None else (_aten.index.Tensor, [args[0], places], {})
        elif func is _aten.index.Tensor or (func is not _aten.masked_select.default and args[2].dim()):
            ids: list[Any] = []
            for one in args[1]:
                places = self._places_in(one) if one is not None and one.dtype == torch.bool else [one]
                if places is None:
                    return func, args, kwargs
                ids += places
            return func, [args[0], ids, *args[2:]], kwargs
        return func, args, kwargs

    def _places_in(self, mask: torch.Tensor) -> list[torch.Tensor] | None:
        """Returns the places that a mask selects, for each dim; None if they are unknown."""
        found = self._constants.asked_places(mask, line_of_step())
        return None if found is None else [self._literal(one, mask) for one in found]

    def _literal(self, value: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = _aten.lift_fresh.default(value)
        self._constants.know(made, value, of)
        return made

    def _need_known(self, arguments: Any, func: Any) -> None:
        """Refuses tensors of modules that come from elsewhere, and shapes that follow from values unless the
        operation is in _aten_ctc.TAKES_SELECTED."""
        for leaf in pytree.tree_leaves(arguments):
            if _follows_from_values(leaf) and (not isinstance(func, torch._ops.OpOverload)
                                               or func._schema.name not in _aten_ctc.TAKES_SELECTED):
                raise DynamicOutputShapeException(func)
            if not is_plain(leaf):
                continue
            self._seen.add(memory_of(leaf))
            if memory_of(leaf) in self._elsewhere:
                raise Unsupported(f"capture: found {self._elsewhere[memory_of(leaf)]}, or its gradient, "
                                  "from elsewhere than its module (a set, a view, an iterator), "
                                  "needed it as the module has it, or from a variable, list, tuple or dict")

    def _need_own(self, func: Any, args: Sequence[Any]) -> None:
        """Raises Unsupported if the operation changes a tensor in the step's variables."""
        written = [arg for arg, schema in zip(args, func._schema.arguments) if schema.alias_info is not None
                   and schema.alias_info.is_write]
        for leaf in pytree.tree_leaves(written):
            label = self._variables.label(leaf) if isinstance(leaf, torch.Tensor) else None
            if label is not None:
                raise Unsupported(
                    f"capture: {line_of_step()}: found a change of {label!r}, "
                    f"a tensor that the step holds, {NEEDED}"
                )


class _Asked(DataDependentOutputException):
    """The error of a step that asks for a value, for example to check it."""

    def __init__(self, func: Any, is_check: bool, arguments: frozenset[str]) -> None:
        """arguments: those that the value depends on."""
        super().__init__(func)
        self.is_check, self.arguments = is_check, arguments


def _next_draw() -> int:
    """Returns the number of a draw. The seed of torch's generator counts draws, as torch.utils.checkpoint
    resets it before it recomputes, and so draws the same numbers."""
    number = torch.default_generator.initial_seed()
    torch.default_generator.manual_seed(number + 1)
    return number


@contextlib.contextmanager
def _counted_draws() -> Iterator[None]:
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(0)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


#: The numbers that torch's optimizers keep for each parameter. Other state has the parameter's shape.
_COUNTS = ("step", "eta", "mu", "mu_product")


def _counting_in_double(optimizer: torch.optim.Optimizer) -> Iterator[
        tuple[dict[str, Any], str, torch.Tensor]]:
    """Turns numbers in the state of torch's optimizers, such as that of the step, into doubles, as Python's
    numbers are: f32 loses half of the bits of 1 - 0.999. Yields the places and the old tensors."""
    homes = (kind.__module__ for kind in type(optimizer).__mro__ if kind is not torch.optim.Optimizer)
    if not any(home.startswith("torch.optim.") for home in homes):
        return
    for held in optimizer.state.values():
        for key, value in held.items():
            if key in _COUNTS and isinstance(value, torch.Tensor) and value.dtype == torch.float32:
                held[key] = value.double()
                yield held, key, value


@contextlib.contextmanager
def _scopes(state: StepState, gradients: _Gradients, mode: _ScopeMode) -> Iterator[None]:
    counts: list[tuple[dict[str, Any], str, torch.Tensor]] = []

    def enter(module: torch.nn.Module, _: Any) -> None:
        if isinstance(module, torch.nn.CrossMapLRN2d):
            raise Unsupported(
                "capture: found CrossMapLRN2d, which works in memory of its own, needed LocalResponseNorm"
            )
        mode.path.append(state.scopes.get(id(module), mode.path[-1]))

    def leave(*_: Any) -> None:
        mode.path.pop()

    def enter_optimizer(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        gradients.without_those_before(p for group in optimizer.param_groups for p in group["params"])
        mode.path.append("optimizer")
        counts.extend(_counting_in_double(optimizer))

    def leave_optimizer(*_: Any) -> None:
        for held, key, count in counts:
            count.copy_(held[key])
            held[key] = count
        counts.clear()
        mode.path.pop()

    def need_known(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not any(optimizer is one for one in state.optimizers):
            name = type(optimizer).__name__
            raise InvalidArgument(f"capture: found a step of {name} that the step's variables do not hold, "
                                  "needed uses=[.., optimizer]")

    hooks = [nn_module.register_module_forward_pre_hook(enter),
             nn_module.register_module_forward_hook(leave, always_call=True)]
    hooks.append(register_optimizer_step_pre_hook(need_known))
    for optimizer in state.optimizers:
        hooks += [optimizer.register_step_pre_hook(enter_optimizer),
                  optimizer.register_step_post_hook(leave_optimizer)]
    try:
        with mode, Functions():
            yield
    except RuntimeError as error:
        if mode.viewed and "mutating a non-functional tensor" in str(error):
            raise Unsupported(
                f"capture: {_line_of(error)}: found a change of {', '.join(map(repr, mode.viewed))}, "
                f"a tensor that the step holds, {NEEDED}"
            ) from None
        raise
    finally:
        for hook in hooks:
            hook.remove()
        fx_traceback.current_meta.pop("custom", None)


@contextlib.contextmanager
def in_words() -> Iterator[None]:
    """Replaces torch's errors about missing values by ours, which have the line of the step that asks for
    them."""
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode) as error:
        what = ("a shape that depends on values" if isinstance(error, DynamicOutputShapeException)
                else "the value of a tensor")
        line = _line_of(error)
        place = line.partition(" ")[0].rpartition("/")[2]
        is_check = getattr(error, "is_check", False)
        or_said = f', or, for a check that is to pass, assume=["{place}"]' if is_check else ""
        arguments = ", ".join(f'"{label}"' for label in sorted(getattr(error, "arguments", ())))
        or_said += f", or, for values that are part of the program, static=[{arguments}]" if arguments else ""
        raise Unsupported(f"capture: {line}: found {what}, needed {_NO_VALUES}{or_said}") from None
    except RuntimeError as error:
        found, needed = next((told for text, told in _IN_WORDS.items() if text in str(error)), (None, None))
        if found is None:
            raise
        raise Unsupported(f"capture: {_line_of(error)}: found {found}, needed {needed}") from None
    except TypeError as error:
        if "SymFloat" not in str(error):
            raise
        raise Unsupported(f"capture: {_line_of(error)}: found a number that only a run knows ({error}), "
                          "needed a step that computes with it, or gives it back") from None


def _line_of(error: BaseException) -> str:
    own = os.path.dirname(torch.__file__), os.path.dirname(_PACKAGE)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__)
              if not frame.filename.startswith(own)]
    last = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}:{last.lineno} ({last.line})"


def _line_of_definition(step: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(getattr(step, "__func__", step)), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else type(step).__name__


def _argument_name(step: Callable[..., Any], path: Any) -> str:
    """Returns the step's name of an argument: "tokens", "batch.labels"."""
    first, *rest = path
    try:
        known = inspect.signature(step.forward if isinstance(step,
                                                             torch.nn.Module) else step).parameters.values()
    except (TypeError, ValueError):  # a function that Python does not define
        known = {}.values()
    names = [p.name for p in known if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    name = names[first.idx] if first.idx < len(names) else str(first.idx)
    return ".".join([name, *map(_key, rest)])


def _key(entry: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)

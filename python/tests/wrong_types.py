"""Calls every public function, constructor, method and setter of a module with one wrong argument at a time, for
test_wrong_types.py: python wrong_types.py MODULE. Prints the number of calls, and each that raised another error than Shardwise's."""

import contextlib
import faulthandler
import importlib
import inspect
import io
import os
import sys
import typing
import warnings

os.environ["JAX_PLATFORMS"] = "cpu"
faulthandler.dump_traceback_later(240, exit=True)

import numpy as np

import shardwise as sw

VALUES = [None, 5, -1, 2**70, 1.5, float("nan"), "x", b"x", [], {}, object(), lambda *_, **__: None, np.float16(1), np.bool_(True),
          np.datetime64("2020-01-01"), np.zeros(2, "M8[s]"), np.array(["a"]), "\ud800", ["\ud800"], {"\ud800": "\ud800"}, {"x": 5}, [None], (5,),
          True, {"x": object()}]

# These are not called: they end the process, or wait for other processes.
LEFT_OUT = {"from_mpi"}
OPERATORS = {"__getitem__", "__contains__", "__array__"}


def checkpoint():
    if not os.path.isdir("c"):
        sw.save("c", {"w": np.ones((2, 2), np.float32)})
    return "c"


def instances(module, name):
    """Returns functions that make an object of each class whose constructor's annotations do not give its arguments."""
    import shardwise.group as group

    makers = {
        "Checkpoint": lambda: module.open(checkpoint()) if hasattr(module, "open") else sw.open(checkpoint()),
        "TieredManager": lambda: None, "Loaded": lambda: None, "Tensor": lambda: module.open(checkpoint())["w"],
        "Loader": lambda: loader(module),
        "Batch": lambda: next(iter(sw.Loader({"x": np.arange(8.0)}, batch_size=2))),
        "PendingSave": lambda: sw.PendingSave(1, lambda progress: None),
        "Mesh": lambda: sw.Mesh("a=2,b=2"), "HybridMesh": lambda: sw.Mesh("a=2,b=2"), "PartitionSpec": lambda: sw.PartitionSpec("a"),
        "Sharding": lambda: sw.Sharding("a=2,b=2", "a"),
        "TransferPlan": lambda: sw.TransferPlan(sw.Sharding("a=2,b=2", "a,b"), sw.Sharding("a=2,b=2", "b,a"), (4, 4)),
        "Source": lambda: sw.sources.of({"x": np.arange(8.0)}), "Group": group.single, "StoreGroup": group.single,
        "Shard": lambda: sw.Shard, "Program": program, "Plan": lambda: program().plan(mesh="a=2"), "RandomAccess": lambda: None, "Store": lambda: None,
        "ShardingSpec": lambda: None, "MpiStore": lambda: None, "TorchStore": lambda: None, "JaxStore": lambda: None,
        "Call": lambda: group.single().call("x"),
    }
    return makers.get(name)


def loader(module):
    data = {"x": np.arange(8, dtype=np.float32)}
    if module.__name__ != "shardwise.jax":
        return module.Loader(data, batch_size=2)
    import jax

    return module.Loader(data, jax.sharding.NamedSharding(jax.make_mesh((1,), ("d",)), jax.sharding.PartitionSpec("d")), batch_size=2)


def program():
    import torch

    import shardwise.torch as swt

    return swt.capture(lambda x: x * 2, torch.ones(4, 2))


def good(hint, name):
    """Returns a value that fits a parameter."""
    if name in ("path", "source", "first", "second"):
        return checkpoint()
    if name in ("root", "target", "folder", "directory"):
        return "out"
    for part in (hint, *typing.get_args(hint)):
        if part in (int, float, bool, str, bytes):
            return {int: 1, float: 1.0, bool: False, str: "x", bytes: b"x"}[part]
    origin = str(typing.get_origin(hint))
    if "Mapping" in origin or "dict" in origin:
        return {"w": np.ones((2, 2), np.float32)}
    if "Callable" in origin:
        return lambda *_, **__: None
    if "Sequence" in origin or "Iterable" in origin or "list" in origin or "tuple" in origin:
        return [1]
    return {"w": np.ones((2, 2), np.float32)}


class Prober:
    def __init__(self, module):
        self.module, self.calls, self.raw = module, 0, []

    def call(self, where, function, /, *args, **kwargs):
        self.calls += 1
        try:
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                function(*args, **kwargs)
        except (sw.Error, StopIteration, EOFError) as error:
            if not str(error) or "incompatible function" in str(error) or "std::" in str(error):
                self.raw.append(f"{where}: {type(error).__name__} {error}")
        except IndexError as error:
            if "__getitem__" not in where:  # one that is out of range, as of any sequence
                self.raw.append(f"{where}: {error}")
        except Exception as error:
            self.raw.append(f"{where}: {type(error).__name__} {str(error)[:300]!r}")

    def probe(self, where, function, make=None):
        """make: gives the object of a method."""
        try:
            signature = inspect.signature(function)
        except ValueError:
            return
        hints = {}
        for name, parameter in signature.parameters.items():
            try:
                hints[name] = eval(parameter.annotation, vars(typing) | inspect.unwrap(function).__globals__)
            except Exception:
                hints[name] = None
        names = [name for name in signature.parameters if name not in ("self", "cls")]
        required = [name for name in names if signature.parameters[name].default is inspect.Parameter.empty
                    and signature.parameters[name].kind in (0, 1, 3)]
        self.call(f"{where}(unknown=)", function, *([make()] if make else []), unknown_option=1)
        if required:
            self.call(f"{where}()", function, *([make()] if make else []))
        for wrong in names:
            kind = signature.parameters[wrong].kind
            for number, value in enumerate(VALUES):
                args = [make()] if make else []
                kwargs = {}
                for name in names:
                    one = value if name == wrong else good(hints[name], name) if name in required else None
                    if name != wrong and name not in required:
                        continue
                    if kind == 4 and name == wrong:
                        kwargs["x"] = value
                    elif signature.parameters[name].kind in (0, 2):
                        args.append(one)
                    else:
                        kwargs[name] = one
                self.call(f"{where}({wrong}={str(value)[:30]!r} #{number})", function, *args, **kwargs)

    def probe_class(self, name, kind):
        if kind.__init__ is not object.__init__ or kind.__new__ is not object.__new__:
            if not getattr(kind, "_is_protocol", False):
                self.probe(name, kind)
        make = instances(self.module, kind.__name__) or (lambda: kind(**{
            n: good(None, n) if n in ("path", "root") else self.default(kind, n, p) for n, p in inspect.signature(kind).parameters.items()
            if p.default is inspect.Parameter.empty and p.kind in (0, 1, 3)}))
        if any(base.__name__ in ("Tensor", "Module", "Function") and base.__module__.startswith("torch") for base in kind.__mro__):
            return  # torch calls their methods
        try:
            made = make()
        except Exception as error:
            self.raw.append(f"{name}: no object is made: {type(error).__name__} {error}")
            return
        if made is None:
            return
        seen = set()
        for base in kind.__mro__:
            if not base.__module__.startswith("shardwise"):
                continue
            for method, item in vars(base).items():
                if method.startswith("_") and method not in OPERATORS or method in seen or method in LEFT_OUT:
                    continue
                seen.add(method)
                where = f"{name}.{method}"
                if isinstance(item, (classmethod, staticmethod)):
                    self.probe(where, getattr(kind, method))
                elif inspect.isfunction(item):
                    self.probe(where, getattr(made, method))
                elif isinstance(item, property) and item.fset:
                    for value in VALUES:
                        self.call(f"{where}={str(value)[:30]!r}", setattr, make(), method, value)

    def default(self, kind, name, parameter):
        try:
            hint = eval(parameter.annotation, vars(typing) | vars(sys.modules[kind.__module__]))
        except Exception:
            hint = None
        return good(hint, name)

    def run(self):
        for name, item in sorted(vars(self.module).items()):
            home = str(getattr(item, "__module__", ""))
            if name.startswith("_") or name in LEFT_OUT or not home.startswith("shardwise"):
                continue
            if not (hasattr(self.module, "__path__") or home == self.module.__name__ or hasattr(item, "_checks_calls")):
                continue
            if inspect.isclass(item):
                if not issubclass(item, BaseException) and home != "shardwise._core":  # its values have no constructor
                    self.probe_class(name, item)
            elif callable(item):
                self.probe(name, item)


if __name__ == "__main__":
    prober = Prober(importlib.import_module(sys.argv[1]))
    prober.run()
    print("calls", prober.calls)
    for line in prober.raw:
        print(line)
    sys.stdout.flush()
    os._exit(0)

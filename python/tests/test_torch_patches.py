"""Names of torch that a trace replaces: five at most, in its own thread alone, and back on every way out."""

import builtins
import contextlib
import sys
import threading
import warnings

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

from torch.fx.experimental.proxy_tensor import make_fx

import shardwise as sw
import shardwise.torch as swt
from shardwise._capture.torch import patches, trace

X = torch.ones(4, 6)


def names_of_torch():
    """Functions, classes and properties by the modules and classes of torch that have them."""
    holders = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "torch" and hasattr(module, "__dict__"):
            holders[name] = vars(module)
            with warnings.catch_warnings(action="ignore"):
                holders.update((f"{name}.{key}", vars(kind)) for key, kind in list(vars(module).items()) if isinstance(kind, type))
    with warnings.catch_warnings(action="ignore"):  # some names are deprecated
        return {(holder, name): value for holder, names in holders.items() for name, value in list(names.items())
                if callable(value) or isinstance(value, property)}


def replaced_of(before):
    now = names_of_torch()
    holders = {holder for holder, _ in now}
    changed = {key for key, value in before.items() if now.get(key) is not value and key[0] in holders}
    added = {key for key in now.keys() - before.keys() if key[1] in vars(builtins) or key[1] in ("data", "tolist")}
    seen = {}  # a class has many names
    for key in changed | added:
        seen.setdefault((id(now.get(key)), key[1]), key)
    return sorted(seen.values())


def has_kernel():
    return any(torch._C._dispatch_has_kernel_for_dispatch_key("aten::scaled_dot_product_attention", key) for key in ("AutogradCPU", "AutogradCUDA"))


class Before:
    """Is a class, because a capture looks for no state in one."""

    names = {}


def training(model=None):
    model = model or torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Dropout(0.5), torch.nn.AdaptiveLogSoftmaxWithLoss(5, 4, [2]))
    averaged = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.Adafactor(model.parameters())

    def step(x):
        model.train()
        loss = model[2](model[1](model[0](x)), torch.tensor([0, 1, 2, 3])).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        averaged.update_parameters(model)
        return loss

    return model, averaged, step


def test_five_names_are_replaced_while_a_step_is_traced():
    model, averaged, step = training()
    swt.capture(step, X)  # imports the rest of torch
    Before.names, during = names_of_torch(), []

    def watched(x):
        during.append((replaced_of(Before.names), has_kernel(), "train" in vars(model)))
        return step(x)

    swt.capture(watched, X)
    theirs = []  # torch's own traces replace names, too
    make_fx(lambda x: theirs.extend(replaced_of(Before.names)) or x + 1)(X)
    (replaced, *rest), = during
    ours = sorted(name for _, name in {*replaced} - {*theirs})
    assert ours == ["_InferenceMode", "data", "max", "min", "tolist"] and rest == [True, True]
    assert replaced_of(Before.names) == [] and not has_kernel() and "train" not in vars(model) and "update_parameters" not in vars(averaged)


class Stop(BaseException):
    pass


def test_all_is_as_before_after_an_error_at_any_operation(monkeypatch):
    model = torch.nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        torch.nn.functional.scaled_dot_product_attention(*[model(x)[None, None]] * 3).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    length = len(swt.capture(step, X))
    before, of_model = names_of_torch(), {name: dict(vars(inner)) for name, inner in model.named_modules()}
    parameters, places = [p for p in model.parameters()], []
    count = trace.count_operation
    for place in range(1, 4 * length, 8):
        passed = []

        def counted(what):
            passed.append(what)
            if len(passed) == place:
                raise Stop
            count(what)

        monkeypatch.setattr(trace, "count_operation", counted)
        with contextlib.suppress(Stop):
            swt.capture(step, X)
        places.append(len(passed) == place)
        assert not has_kernel() and not torch.compiler.is_compiling() and torch._C._get_mkldnn_enabled() and not patches._TRACING.locked()
        assert {name: dict(vars(inner)) for name, inner in model.named_modules()} == of_model
        assert all(p is q and p.grad is None for p, q in zip(model.parameters(), parameters, strict=True))
    assert replaced_of(before) == [] and sum(places) > 4
    monkeypatch.undo()
    assert len(swt.capture(step, X)) == length


def test_all_is_as_before_after_an_error_in_the_middle_of_the_patches(monkeypatch):
    _, _, step = training()
    swt.capture(step, X)
    before = names_of_torch()
    for count in range(len(patches._NAMES)):
        with monkeypatch.context() as patch:
            patch.setattr(patches, "_NAMES", [*patches._NAMES[:count], (object(), "no", None)])
            with pytest.raises(TypeError):
                swt.capture(step, X)
        assert replaced_of(before) == [] and not torch.compiler.is_compiling()
    swt.capture(step, X)


def test_another_thread_has_torchs_own_and_captures_later():
    _, _, step = training()
    found = []

    class Now:
        begun, end = threading.Event(), threading.Event()

    def waiting(x):
        Now.begun.set()
        Now.end.wait(60)
        return step(x)

    def other():
        Now.begun.wait(60)
        try:
            with pytest.raises(sw.Unsupported, match="found another capture that traces now, needed one at a time"):
                swt.capture(torch.nn.Linear(6, 2), X)
            with torch.inference_mode():
                found.append(torch.ones(2).is_inference())
            q = torch.randn(1, 1, 3, 4, requires_grad=True)
            torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
            found.append(q.grad is not None)
            found.append(torch.optim._adafactor.max(1, 2))
        finally:
            Now.end.set()

    thread = threading.Thread(target=other)
    thread.start()
    program = swt.capture(waiting, X)
    thread.join()
    assert found == [True, True, 2] and len(program) > 0
    assert swt.capture(torch.nn.Linear(6, 2), X).run(X, devices=1).shape == (4, 2)


def test_a_capture_in_a_step_that_is_captured_is_refused():
    with pytest.raises(sw.Unsupported, match="found another capture that traces now"):
        swt.capture(lambda x: swt.capture(torch.nn.Linear(6, 2), x), X)

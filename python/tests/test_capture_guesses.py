"""First guesses of capture() and mark_sharding() by people who have read no page: they work, or one line says what to write."""

import numpy as np
import pytest

import shardwise as sw

torch = pytest.importorskip("torch")
swt = pytest.importorskip("shardwise.torch")

linear, bilinear = torch.nn.Linear(4, 4), torch.nn.Bilinear(4, 4, 2)
x = torch.ones(2, 4)
sgd = torch.optim.SGD(linear.parameters(), 0.1)


def step(a, b, scale=None):
    return (a @ b).sum() if scale is None else (a @ b).sum() * scale


def of_pair(pair):
    return pair[0] + pair[1]


def raises(*args):
    raise KeyError("mine")


WORKS = {
    "in order": (lambda c: c(bilinear, x, x), lambda: c_of(bilinear, x, x)),
    "a tuple of two": (lambda c: c(bilinear, (x, x)), lambda: c_of(bilinear, x, x)),
    "a list of two": (lambda c: c(bilinear, [x, x]), lambda: c_of(bilinear, x, x)),
    "by the step's names": (lambda c: c(step, a=x, b=x.T), lambda: c_of(step, x, x.T)),
    "the last by name": (lambda c: c(step, x, b=x.T), lambda: c_of(step, x, x.T)),
    "a module's name": (lambda c: c(linear, input=x), lambda: c_of(linear, x)),
    "a tuple that is an argument": (lambda c: c(of_pair, (x, x)), lambda: c_of(of_pair, (x, x))),
}
SAYS = {
    "a tuple of one": (lambda c: c(linear, (x,)), "Linear failed with a tuple .*capture\\(Linear, x\\)"),
    "a list of one": (lambda c: c(linear, [x]), "without the list: capture\\(Linear, x\\)"),
    "a tuple and a dict": (lambda c: c(linear, (x,), {}), "too many positional.*one by one: capture\\(Linear, x, y\\)"),
    "too few": (lambda c: c(step, x), "missing a required argument: 'b'.*one by one"),
    "args=": (lambda c: c(linear, args=(x,)), "'args', needed the arguments one by one"),
    "example_inputs=": (lambda c: c(linear, example_inputs=(x,)), "'example_inputs', needed the arguments one by one"),
    "loss=": (lambda c: c(linear, x, loss=torch.nn.MSELoss()), "'loss', needed a step that computes the loss: def step"),
    "loss_fn=": (lambda c: c(linear, x, loss_fn=torch.nn.MSELoss()), "'loss_fn', needed a step that computes the loss"),
    "optimizer=": (lambda c: c(linear, x, optimizer=sgd), "'optimizer', needed a step that applies the optimizer"),
    "mesh=": (lambda c: c(linear, x, mesh="data=2"), "plan\\(mesh\\)"),
    "a name alone": (lambda c: c(step, x, x.T, scal=2), "unknown option 'scal'"),
    "no function": (lambda c: c("model", x), "found str as the step, needed is a function or a module"),
    "a gap": (lambda c: c(lambda a, *, b: a + b, x, b=x), "found b by name, needed are arguments in order"),
}


def c_of(*args):
    return swt.capture(*args)


@pytest.mark.parametrize("guess", WORKS)
def test_it_works(guess):
    made, right = WORKS[guess]
    assert made(swt.capture).text == right().text


@pytest.mark.parametrize("guess", SAYS)
def test_one_line_says_what_to_write(guess):
    call, text = SAYS[guess]
    with pytest.raises((sw.InvalidArgument, TypeError), match=text) as caught:
        call(swt.capture)
    assert "\n" not in str(caught.value)


def test_an_exception_of_the_step_is_its_own():
    with pytest.raises(KeyError, match="mine"):
        swt.capture(raises, (x, x))


def test_what_jax_steps_are_given():
    jax = pytest.importorskip("jax")
    import shardwise.jax as swj

    def f(params, y):
        return (params["w"] @ y).sum()

    params, y = {"w": jax.numpy.ones((4, 4))}, jax.numpy.ones(4)
    right = swj.capture(f, params, y).text
    for made in (swj.capture(f, (params, y)), swj.capture(f, [params, y]), swj.capture(f, params, y=y), swj.capture(f, params=params, y=y)):
        assert made.text == right
    for more, text in (({"args": 1}, "one by one"), ({"in_shardings": None}, "plan"), ({"static_argnums": 1}, "functools.partial"),
                       ({"donate_argnums": 0}, "takes its memory"), ({"optimizer": 1}, "a step that applies"), ({"kind": {}}, "kinds=")):
        with pytest.raises(TypeError, match=text):
            swj.capture(f, params, y, **more)
    with pytest.raises(sw.InvalidArgument, match="found dict as the step"):
        swj.capture(params, y)
    with pytest.raises(sw.InvalidArgument, match="one by one"):
        swj.capture(f, params, y, y)


def test_a_lowered_step_is_told_to_be_the_function(tmp_path):
    jax = pytest.importorskip("jax")
    export = pytest.importorskip("jax.export")
    import shardwise.jax as swj

    x = jax.numpy.ones(4)
    lowered, exported = jax.jit(jax.numpy.sin).lower(x), export.export(jax.jit(jax.numpy.sin))(x)
    for form in (lowered, lowered.as_text(), exported, exported.mlir_module_serialized):
        with pytest.raises(
            sw.InvalidArgument, match=r"found StableHLO.*needed is the function itself: capture\(step, x, y\)"
        ):
            swj.capture(form, x)
    with pytest.raises(
        AttributeError, match=r"needed is capture\(step, \*example\), of the function that was lowered"
    ):
        swj.from_stablehlo
    (tmp_path / "step.mlir").write_text(lowered.as_text())
    with pytest.raises(
        sw.InvalidArgument,
        match=r"step.mlir: read a program: found MLIR.*shardwise.jax.capture\(step, x\).save",
    ):
        sw.programs.load(tmp_path / "step.mlir")


def test_tensors_that_are_not_on_the_device():
    import shardwise.torch.spmd as xs

    mesh = xs.Mesh(np.arange(2), (2,), ("data",))
    for tensor, text in ((x, r"found a tensor on cpu, needed one of the device: t.to\(xla_device\(\)\)"), (linear.weight, "to\\(xla_device"),
                         (linear, "found a Linear, needed a tensor"), (np.ones((2, 2)), "found a ndarray, needed a tensor")):
        with pytest.raises(sw.InvalidArgument, match=text):
            xs.mark_sharding(tensor, mesh, ("data", None))

"""Arguments whose values a captured step asks for: static ones are part of the program, others are
refused."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

import shardwise as sw
import shardwise.torch as swt

X, GRID, MASK = torch.arange(12.0).reshape(4, 3), torch.tensor([[1, 2], [3, 1]]), torch.tensor([True, False, True, True])


def test_a_step_may_ask_for_the_values_of_an_argument():
    weight = torch.nn.Linear(3, 3)

    def step(x, grid, mask):
        for height, width in grid.tolist():
            x = x + height * width
        rows = weight(x)[mask]
        x = x.clone()
        x[mask] = rows * 2
        if not mask.all():
            x = torch.repeat_interleave(x, grid[0].repeat(2), 0)
        made = x.sum() + weight(x).masked_select(mask.repeat(2)[:6, None].expand(6, 3)).sum()
        made.backward()
        gradient, weight.weight.grad, weight.bias.grad = weight.weight.grad, None, None
        return made, gradient, mask.nonzero(), torch.tensor([x.detach().max(), x.detach().min()]), torch.unique_consecutive(grid.flatten())

    with pytest.raises(
        sw.Unsupported,
        match=r'^capture: .*test_torch_asked.py:\d+ \(for height.*'
        r'found the value of a tensor, .* static=\["grid"\]$',
    ):
        swt.capture(step, X, GRID, MASK)
    with pytest.raises(
        sw.Unsupported, match=r'\(rows = .*found a shape that depends on values, .* static=\["mask"\]$'
    ):
        swt.capture(step, X, GRID, MASK, static=["grid"])
    with pytest.raises(
        sw.InvalidArgument, match="static: found 'size', needed one of the step's tensors: x, grid, mask"
    ):
        swt.capture(step, X, GRID, MASK, static=["size"])
    program = swt.capture(step, X, GRID, MASK, static=["grid", "mask"])
    for _ in range(2):
        torch.testing.assert_close(program.run(X, GRID, MASK, devices=1), step(X, GRID, MASK))
    torch.testing.assert_close(program.mark({"x": "data,-"}).run(X * 2, GRID, MASK, mesh="data=4"), step(X * 2, GRID, MASK))
    with pytest.raises(sw.InvalidArgument, match=r"^run: found other values of grid than at the capture, needed the same: .*test_torch_asked.py:\d+ asks for them"):
        program.run(X, GRID + 1, MASK, devices=1)


def test_a_comparison_asks_for_the_values_of_both():
    program = swt.capture(
        lambda x, grid, other: x if torch.equal(grid, other) else -x,
        X,
        GRID,
        GRID.clone(),
        static=["grid", "other"],
    )
    torch.testing.assert_close(program.run(X, GRID, GRID, devices=1), X)
    for other in ([GRID + 1, GRID], [GRID, GRID + 1]):
        with pytest.raises(sw.InvalidArgument, match=r"^run: found other values of (grid|other) than at the capture, needed the same: .*asks for them"):
            program.run(X, *other, devices=1)


def test_what_changes_in_place_is_asked_as_it_is_then():
    def step(x, grid, mask):
        own = grid.clone()
        own += 1
        places = mask.nonzero()
        places += own[0, 0].item()
        grid[0] = 0
        return x * int(own.sum()) + int(grid.sum()), places

    program = swt.capture(step, X, GRID.clone(), MASK, static=["grid", "mask"])
    for _ in range(2):
        torch.testing.assert_close(program.run(X, GRID, MASK, devices=1), step(X, GRID.clone(), MASK))


def test_what_only_computes_with_an_argument_takes_others():
    def step(x, mask):
        assert mask.any()
        return x * mask.float().mean().item() + torch.where(mask[:, None], x, 1)

    program = swt.capture(step, X, MASK, assume=["test_torch_asked.py:assert mask.any()"])
    torch.testing.assert_close(program.run(X, ~MASK, devices=1), step(X, ~MASK))


@pytest.mark.parametrize("function", [lambda x, large: x[:int(large.sum())], lambda x, large: x if x.max() > 3 else -x, lambda x, large: x[x > 0]])
def test_what_is_not_static_is_not_asked(function):
    with pytest.raises(sw.Unsupported, match=r"^capture: .*test_torch_asked.py:\d+ .*found (the value of a tensor|a shape that depends on values)"):
        swt.capture(function, X, torch.ones(70, dtype=torch.int64))


def test_floats_may_be_static():
    program = swt.capture(lambda x, y: x if y.max() > 3 else -x, X, X, static=["y"])
    torch.testing.assert_close(program.run(X * 2, X, devices=1), X * 2)
    with pytest.raises(sw.InvalidArgument, match="run: found other values of y than at the capture"):
        program.run(X, -X, devices=1)


def test_what_is_static_has_values_and_is_small():
    for n in (torch.tensor(2, device="meta"), torch.ones(70000, dtype=torch.int64)):
        with pytest.raises(
            sw.InvalidArgument,
            match=r"static: found n of \d+ elements on (cpu|meta), needed one with values, of at most 65536",
        ):
            swt.capture(lambda x, n: x[:int(n.sum())], X, n, static=["n"])

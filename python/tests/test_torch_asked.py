"""Arguments of whole numbers whose values a captured step asks for: they are part of the program."""

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

    program = swt.capture(step, X, GRID, MASK)
    for _ in range(2):
        torch.testing.assert_close(program.run(X, GRID, MASK, devices=1), step(X, GRID, MASK))
    torch.testing.assert_close(program.mark({"x": "data,-"}).run(X * 2, GRID, MASK, mesh="data=4"), step(X * 2, GRID, MASK))
    with pytest.raises(sw.InvalidArgument, match=r"^run: found other values of grid than at the capture, needed the same: .*test_torch_asked.py:\d+ asks for them"):
        program.run(X, GRID + 1, MASK, devices=1)


def test_a_comparison_asks_for_the_values_of_both():
    program = swt.capture(lambda x, grid, other: x if torch.equal(grid, other) else -x, X, GRID, GRID.clone())
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

    program = swt.capture(step, X, GRID.clone(), MASK)
    for _ in range(2):
        torch.testing.assert_close(program.run(X, GRID, MASK, devices=1), step(X, GRID.clone(), MASK))


def test_what_only_computes_with_an_argument_takes_others():
    def step(x, mask):
        assert mask.any()
        return x * mask.float().mean().item() + torch.where(mask[:, None], x, 1)

    program = swt.capture(step, X, MASK, assume=["test_torch_asked.py:assert mask.any()"])
    torch.testing.assert_close(program.run(X, ~MASK, devices=1), step(X, ~MASK))


@pytest.mark.parametrize("function", [lambda x, large: x[:int(large.sum())], lambda x, large: x if x.max() > 3 else -x, lambda x, large: x[x > 0]])
def test_floats_and_large_arguments_are_not_asked(function):
    with pytest.raises(sw.Unsupported, match=r"^capture: .*test_torch_asked.py:\d+ .*found (the value of a tensor|a shape that depends on values)"):
        swt.capture(function, X, torch.ones(70000, dtype=torch.int64))


def test_the_meta_device_has_no_values():
    with pytest.raises(sw.Unsupported, match="found the value of a tensor"):
        swt.capture(lambda x, n: x[:int(n)], X, torch.tensor(2, device="meta"))

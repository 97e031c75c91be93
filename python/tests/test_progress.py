"""Long captures and plans say on a terminal how far they are."""
import io
import os
import pty
import select
import types

import jax
import jax.numpy as jnp
import pytest
import torch

import shardwise.jax as swj
import shardwise.torch as swt
from shardwise import _progress
from shardwise._progress import WorkLine, count_operation

DEADLINE = 60  # seconds


class Terminal:
    """Stands for stderr; its output is read until a text has come."""

    def __init__(self):
        self.master, terminal = pty.openpty()
        self.stream = os.fdopen(terminal, "w")
        self._read = io.StringIO()  # no variable of a step, which a capture does not let it change

    @property
    def seen(self):
        return self._read.getvalue()

    def wait_for(self, text):
        while text not in self.seen:
            assert select.select([self.master], [], [], DEADLINE)[0], self.seen
            self._read.write(os.read(self.master, 4096).decode())

    def wait_for_cleared_line(self):
        """Requires that nothing else writes there any more."""
        self.stream.write("end")
        self.stream.flush()
        self.wait_for("\r\x1b[Kend")

    def close(self):
        self.stream.close()
        os.close(self.master)


@pytest.fixture
def terminal(monkeypatch):
    one = Terminal()
    # Not sys.stderr itself: pytest puts its own there between a fixture and its test.
    monkeypatch.setattr(_progress, "sys", types.SimpleNamespace(stderr=one.stream))
    monkeypatch.setattr(WorkLine, "AFTER", 0.0)
    monkeypatch.setattr(WorkLine, "EACH", 0.01)
    yield one
    one.close()


def torch_capture(wait, **options):
    def step(x):
        y = x.exp().sin()
        wait()
        return y.sum()

    return swt.capture(step, torch.zeros(4), **options)


def jax_capture(wait, **options):
    def step(x):
        y = jnp.sin(x)
        wait()
        return y.sum()

    return swj.capture(step, jax.ShapeDtypeStruct((4,), "float32"), **options)


@pytest.mark.parametrize(("capture", "text"), [(torch_capture, "capture step: 2 operations traced, "), (jax_capture, "capture step: 0 s")])
def test_a_long_capture_is_told_of_on_a_terminal_and_the_line_is_cleared(terminal, capture, text):
    assert len(capture(lambda: terminal.wait_for(text))) > 0
    terminal.wait_for_cleared_line()
    assert "\n" not in terminal.seen


@pytest.mark.parametrize("capture", [torch_capture, jax_capture])
def test_nothing_is_told_where_nobody_looks_or_wants_it(terminal, monkeypatch, capture):
    capture(lambda: None, progress=False)
    nowhere = io.StringIO()
    monkeypatch.setattr(_progress, "sys", types.SimpleNamespace(stderr=nowhere))
    capture(lambda: None)
    monkeypatch.setattr(_progress, "sys", types.SimpleNamespace(stderr=None))  # pythonw and daemons have none
    capture(lambda: None)
    terminal.stream.write("end")
    terminal.stream.flush()
    terminal.wait_for("end")
    assert (terminal.seen, nowhere.getvalue()) == ("end", "")


def test_a_capture_that_fails_clears_its_line(terminal):
    def fail():
        terminal.wait_for("capture step: ")
        raise ValueError("of the step")

    with pytest.raises(ValueError, match="of the step"):
        torch_capture(fail)
    terminal.wait_for_cleared_line()


def test_operations_are_counted_by_stage_for_the_innermost_work(terminal):
    count_operation("traced")  # counts for no work
    with WorkLine("outer"):
        for _ in range(1234):
            count_operation("written")
        terminal.wait_for("outer: 1,234 operations written, ")
        with WorkLine("inner"):
            count_operation("traced")
            terminal.wait_for("inner: 1 operations traced, ")
        count_operation("written")
        terminal.wait_for("outer: 1,235 operations written, ")


def test_a_terminal_that_is_gone_stops_nothing(terminal):
    def hang_up():
        terminal.wait_for("capture step: ")
        terminal.stream.close()

    assert len(torch_capture(hang_up)) > 0

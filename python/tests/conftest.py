import pathlib
import sys
from collections.abc import Iterator

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))


@pytest.fixture
def waits_alone_let_others_run() -> Iterator[None]:
    """Other threads of Python run only while this one waits, so that its next statements run before theirs."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)

"""Decompositions of matrices in programs, compared with numpy, torch and JAX: in a batch, cut along it, of both floats."""

import itertools
import tempfile

import numpy as np
import pytest

import shardwise as sw

MESHES = ("data=1", "data=8", "data=2,model=4")
TOLERANCE = {"f4": 2e-4, "f8": 1e-11}
RANDOM = np.random.default_rng(5)


def matrices(dtype, *shape):
    return RANDOM.standard_normal(shape).astype(dtype)


def definite(dtype, *shape):
    x = matrices(dtype, *shape)
    return x @ x.swapaxes(-1, -2) + np.eye(shape[-1], dtype=dtype)


def parsed(text):
    with tempfile.NamedTemporaryFile("w", suffix=".swp") as file:
        file.write(text)
        file.flush()
        return sw.programs.load(file.name)


def run(line, shape, *arrays, mesh="data=8"):
    """Runs one operation, whose operands are cut along the first dim."""
    dtype = {"f4": "f32", "f8": "f64"}[arrays[0].dtype.str[1:]]
    mark = f'"data{",-" * (arrays[0].ndim - 1)}"' if arrays[0].ndim > 2 else '"-,-"'
    lines = [f'%{i} = input() "{i}" : {dtype}{list(x.shape)} marked {mark[1:-1]} kind=loader' for i, x in enumerate(arrays)]
    text = "\n".join([*lines, f"%{len(arrays)} = {line} : {dtype}{list(shape)}", f"return %{len(arrays)}", ""])
    plan = parsed(text).plan(mesh)
    assert plan.wire_bytes == {}
    return plan.run({str(i): x for i, x in enumerate(arrays)})[0]


@pytest.mark.parametrize(("dtype", "mesh"), list(itertools.product(TOLERANCE, MESHES)))
def test_each_decomposition_gives_its_matrix_again(dtype, mesh):
    a, s, most = matrices(dtype, 8, 2, 6, 4), definite(dtype, 8, 2, 5, 5), TOLERANCE[dtype]

    def close(found, expected):
        np.testing.assert_allclose(found, expected, rtol=most, atol=most)

    lower = run("decompose(%0) cholesky", s.shape, np.tril(s) + np.triu(np.full_like(s, np.nan), 1), mesh=mesh)
    close(lower, np.linalg.cholesky(s))

    for x in (a, a.swapaxes(-1, -2).copy()):
        (rows, columns), least = x.shape[-2:], min(x.shape[-2:])
        both = run("decompose(%0) lu", (8, 2, rows + 1, columns), x, mesh=mesh)
        order = np.broadcast_to(np.arange(rows), (8, 2, rows)).copy()
        for i, j in np.ndindex(8, 2):
            for place, pivot in enumerate(both[i, j, -1, :least].astype(int)):
                order[i, j, [place, pivot]] = order[i, j, [pivot, place]]
        l, u = np.tril(both[..., :rows, :least], -1) + np.eye(rows, least), np.triu(both[..., :least, :])
        close(l @ u, np.take_along_axis(x, order[..., None], -2))

        both = run("decompose(%0) qr", (8, 2, rows + 1, columns), x, mesh=mesh)
        q, r = np.linalg.qr(x)
        close(np.triu(both[..., :least, :]), r)
        assert (both[..., -1, :least] >= 0).all() and (both[..., -1, least:] == 0).all()

        both = run("decompose(%0) svd", (8, 2, rows + columns + 1, least), x, mesh=mesh)
        u, v, values = both[..., :rows, :], both[..., rows:-1, :], both[..., -1, :]
        close(values, np.linalg.svd(x, compute_uv=False))
        close((u * values[..., None, :]) @ v.swapaxes(-1, -2), x)

    signed = s - 2 * np.eye(5, dtype=dtype)
    both = run("decompose(%0) eigh", (8, 2, 6, 5), np.tril(signed) + np.triu(np.full_like(s, 7), 1), mesh=mesh)
    vectors, values = both[..., :-1, :], both[..., -1, :]
    close(values, np.linalg.eigvalsh(signed))
    close((vectors * values[..., None, :]) @ vectors.swapaxes(-1, -2), signed)


@pytest.mark.parametrize(("dtype", "flags"), list(itertools.product(TOLERANCE, itertools.product((False, True), repeat=4))))
def test_triangles_are_solved_on_each_side(dtype, flags):
    right, upper, transpose, unit = flags
    a, b = matrices(dtype, 8, 4, 4) * np.array(0.3, dtype) + 2 * np.eye(4, dtype=dtype), matrices(dtype, 8, 3, 4)
    b = b if right else b.swapaxes(-1, -2).copy()
    words = "".join(f" {word}" for word, flag in zip(("right", "upper", "transpose", "unit"), flags) if flag)
    x = run(f"triangular_solve(%0, %1){words}", b.shape, a, b)
    triangle = np.triu(a) if upper else np.tril(a)
    if unit:
        triangle = triangle - triangle * np.eye(4, dtype=dtype) + np.eye(4, dtype=dtype)
    triangle = triangle.swapaxes(-1, -2) if transpose else triangle
    np.testing.assert_allclose(x @ triangle if right else triangle @ x, b, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_matrices_without_a_decomposition_give_nan():
    bad = np.stack([np.eye(3, dtype="f4"), -np.eye(3, dtype="f4"), np.full((3, 3), np.nan, "f4"), np.full((3, 3), np.inf, "f4")])
    assert [np.isnan(x).all() for x in run("decompose(%0) cholesky", (4, 3, 3), bad, mesh="data=4")] == [False, True, True, True]
    for kind, shape in (("eigh", (4, 4, 3)), ("svd", (4, 7, 3))):
        assert [np.isnan(x).any() for x in run(f"decompose(%0) {kind}", shape, bad, mesh="data=4")] == [False, False, True, True]
    assert run("decompose(%0) svd", (0, 7, 3), bad[:0], mesh="data=1").shape == (0, 7, 3)


def test_other_matrices_are_refused():
    x = np.ones((2, 3, 4), "f4")
    for line, shape, needed in (("decompose(%0) cholesky", (2, 3, 4), "needed a square matrix"), ("decompose(%0) eigh", (2, 4, 4), "needed a square matrix"),
                                ("triangular_solve(%0, %0)", (2, 3, 4), "needed a square matrix")):
        with pytest.raises(sw.Error, match=needed):
            run(line, shape, x)
    with pytest.raises(sw.Error, match=r"found f32\[4\], needed a matrix"):
        parsed('%0 = input() "x" : f32[4] kind=loader\n%1 = decompose(%0) lu : f32[5]\nreturn %1\n')
    with pytest.raises(sw.Error, match="found i32, needed f32 or f64"):
        parsed('%0 = input() "x" : i32[4, 4] kind=loader\n%1 = decompose(%0) lu : i32[5, 4]\nreturn %1\n')


@pytest.mark.parametrize("full", [False, True])
def test_jax_decomposes_by_eigenvalues_and_singular_values(full):
    jax = pytest.importorskip("jax", reason="needs jax, which this environment has not")
    import shardwise.jax as swj

    jnp = jax.numpy
    s, a = definite("f4", 8, 5, 5), matrices("f4", 8, 5, 3)

    def step(s, a):
        def value(s, a):
            values, vectors = jnp.linalg.eigh(s)
            u, singular, vt = jnp.linalg.svd(s if full else a, full_matrices=full)
            root = (vectors * jnp.sqrt(values)[:, None, :]) @ vectors.mT
            return jnp.sin(root).sum() + jnp.sin((u * jnp.sqrt(singular)[:, None, :]) @ vt).sum()

        return jax.value_and_grad(value, (0, 1))(s, a), jnp.linalg.pinv(a), jnp.linalg.eigvalsh(s, UPLO="U")

    program, expected = swj.capture(step, s, a), step(s, a)
    for mesh in ("data=1", "data=8"):
        found = program.mark({"s": "data,-,-", "a": "data,-,-"}).run(s, a, mesh=mesh)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-4), found, expected)


def test_jax_parts_that_no_program_has_are_named():
    jax = pytest.importorskip("jax", reason="needs jax, which this environment has not")
    import shardwise.jax as swj

    x = np.ones((4, 3), "f4")
    for step, named in ((lambda x: jax.numpy.linalg.svd(x), "full_matrices=True, needed full_matrices=False"),
                        (lambda x: jax.numpy.linalg.eigvals(x.T @ x), "needed cholesky, qr, lu, eigh or svd")):
        with pytest.raises(sw.Unsupported, match=named):
            swj.capture(step, x)

"""Decompositions of matrices in captured steps of torch: their values and gradients are torch's, on one device and on eight."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

import shardwise as sw
import shardwise.torch as swt
from test_torch_more_rules import agree, marked
from test_torch_program_rules import floats

L = torch.linalg
A, B, TALL = floats(8, 5, 5) * 0.3 + 2 * torch.eye(5), floats(8, 5, 3), floats(8, 7, 4)
DEFINITE = A @ A.mT + torch.eye(5)
SIGNED = DEFINITE - 3 * torch.eye(5)


def powers(values, vectors, power):
    """Returns a power of a symmetric matrix, which does not depend on the signs of vectors."""
    return (vectors * values.abs().pow(power).unsqueeze(-2)) @ vectors.mT


def determinants(a, b):
    return L.det(a)[:, None] * b[..., 0] + L.slogdet(a.mT).logabsdet.sum() + L.det(a.mT)[:, None]


SQUARE = {
    "inverse": lambda a, b: L.inv(a) + L.matrix_power(a, -2) + L.solve(a[0], b[:, :, :1]),
    "systems": lambda a, b: L.solve(a, b) + L.solve(a, b.mT, left=False).mT + L.solve(a, b[..., 0])[..., None],
    "factors": lambda a, b: L.lu_solve(*L.lu_factor(a), b) + L.lu_solve(*L.lu_factor(a), b, adjoint=True) + L.lu(a)[1][..., :3],
    "determinants": lambda a, b: determinants(a.double(), b.double()).float(),  # up to 147, so that f32 says little of a sine
    "reflections": lambda a, b: L.qr(a).Q @ b + L.qr(a).R[..., :3] + L.qr(b).Q,
    "exponential": lambda a, b: torch.matrix_exp(a * 0.3) @ b + torch.matrix_exp(a[0] * 2)[:, :3] * 0.01,
    "singular values": lambda a, b: (lambda u, s, v: (u * s.sqrt().unsqueeze(-2)) @ v)(*L.svd(b, full_matrices=False)) + L.matrix_norm(a, "nuc").sum() + L.cond(a).mean(),
}
SYMMETRIC = {
    "cholesky": lambda s, b: torch.cholesky_solve(b, L.cholesky(s)) + L.cholesky(s, upper=True) @ b + torch.cholesky_inverse(L.cholesky(s)) @ b + torch.logdet(s)[0],
    "eigenvalues": lambda s, b: powers(*L.eigh(s), -0.25) @ b + L.eigvalsh(s).amax(1)[:, None, None],
    "normal": lambda s, b: torch.distributions.MultivariateNormal(b[..., 0], covariance_matrix=s, validate_args=False).log_prob(b[..., 1]),
}
RECTANGULAR = {
    "least squares": lambda w, b: L.lstsq(w, b).solution + L.lstsq(w.mT, b[:, :4]).solution[:, :4],
    "pseudo-inverse": lambda w, b: L.pinv(w) @ b + L.pinv(w.mT).mT @ b,
    "rows": lambda w, b: L.qr(w.mT).R @ b + L.lu(w).L.mT @ b,
}


@pytest.mark.parametrize("name", SQUARE)
def test_what_is_made_of_a_matrix_and_its_gradient_are_those_of_torch(name):
    agree(SQUARE[name], A, B)


@pytest.mark.parametrize("name", SYMMETRIC)
def test_what_is_made_of_a_symmetric_matrix_and_its_gradient_are_those_of_torch(name):
    agree(SYMMETRIC[name], DEFINITE, B)


@pytest.mark.parametrize("name", RECTANGULAR)
def test_what_is_made_of_a_matrix_that_is_not_square_and_its_gradient_are_those_of_torch(name):
    agree(RECTANGULAR[name], TALL, floats(8, 7, 2))


def parts(a, s, w):
    permutation, lower, upper = torch.lu_unpack(*L.lu_factor(w))
    return [L.lu_factor(a).pivots, L.slogdet(a).sign, permutation, lower, upper, *torch.geqrf(w), L.qr(w, mode="complete").Q, L.qr(w, mode="r").R, L.matrix_rank(w),
            L.svdvals(w.mT), L.eigvalsh(s, UPLO="U"), *L.lstsq(w, w[..., :2], driver="gelsd"), L.cholesky_ex(s).L, L.pinv(s, hermitian=True),
            L.pinv(w, rtol=0.5), L.pinv(w, atol=2.0)]


def test_parts_without_a_gradient_are_those_of_torch():
    given = A.flip(1), DEFINITE, TALL
    program, expected = swt.capture(parts, *given), parts(*given)
    torch.testing.assert_close(program.run(*given, devices=1), expected, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(marked(program).run(*given, mesh="data=8"), expected, rtol=1e-4, atol=2e-5)


def test_rotations_are_exact_to_all_bits_but_a_few():
    """Of 32 columns, of values of both signs, of equal ones and of rank 3; the inverse in f64 to f64's."""
    wide = floats(32, 32)
    cases = [wide + wide.mT, wide[:, :3] @ wide[:, :3].mT, torch.eye(32), torch.zeros(32, 32), torch.block_diag(torch.tensor([[0.0, 1], [1, 0]]), torch.zeros(30, 30))]
    given = torch.stack(cases)

    def step(x):
        values, vectors = L.eigh(x)
        return values, (vectors * values.unsqueeze(-2)) @ vectors.mT, vectors.mT @ vectors, L.svdvals(x), L.inv(x[0].double())

    found, expected = swt.capture(step, given).run(given, devices=1), step(given)
    for ours, theirs, tolerance in zip(found, expected, (1e-4, 1e-4, 1e-5, 1e-4, 1e-12), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def test_what_is_not_definite_has_no_factor():
    """torch raises an error, which a program cannot."""
    program = swt.capture(L.cholesky, SIGNED)
    assert program.run(SIGNED, devices=1).isnan().any()


def test_what_no_program_has_of_matrices_is_named():
    for step, named in ((L.eigvals, r"linalg_eig\.default"), (lambda a: L.svd(a[:, :3]), "full_matrices=True, needed full_matrices=False"),
                        (lambda a: L.inv(torch.complex(a, a)), r"linalg_inv_ex\.default: found complex numbers"),
                        (lambda a: L.inv_ex(a).info, "a result that only torch's own gradient uses"), (lambda a: L.lu(a, pivot=False), "needed one with them")):
        with pytest.raises(sw.Unsupported, match=named):
            swt.capture(step, A)


class Shampoo(torch.optim.Optimizer):
    """The optimizer scales by roots of the sums of products of gradients."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state["left"], state["right"] = torch.eye(p.shape[0]), torch.eye(p.shape[1])
            state["left"] += p.grad @ p.grad.T
            state["right"] += p.grad.T @ p.grad
            p.sub_(0.1 * powers(*L.eigh(state["left"]), -0.25) @ p.grad @ torch.inverse(state["right"]))


def test_an_optimizer_may_decompose_what_it_keeps():
    def make():
        torch.manual_seed(1)
        model = torch.nn.Linear(6, 4, bias=False)
        optimizer = Shampoo(model.parameters())

        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        step(floats(8, 6))
        return model, step

    (ours, step), (theirs, torch_step) = make(), make()
    program = marked(swt.capture(step, floats(8, 6)).mark({"x": "data,-"}))
    for _ in range(2):
        torch.testing.assert_close(program.run(floats(8, 6), devices=1), torch_step(floats(8, 6)), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-4, atol=1e-5)


def test_an_adaptive_softmax_is_one_of_all_classes():
    model = torch.nn.AdaptiveLogSoftmaxWithLoss(6, 10, [3, 6])

    def step(x, target):
        output, loss = model(x, target)
        return output, loss.detach(), torch.autograd.grad(loss, list(model.parameters()))

    given = floats(8, 6), torch.tensor([0, 1, 5, 9, 3, 2, 8, 7])
    torch.testing.assert_close(marked(swt.capture(step, *given)).run(*given, mesh="data=1"), step(*given), rtol=1e-5, atol=1e-6)

"""Every sampler on posteriors known exactly, and proof that these tests notice broken maths."""

import jax.numpy as jnp
import pytest

import hamcmc
from tests.mutation import mutant
from tests.samplers.catalogue import NAMES, catalogue
from tests.samplers.targets import Gaussian, Quartic


def check_gaussian(package, name):
    """Replicas started in the exact posterior of a linear Gaussian model still have it at the end."""
    target = Gaussian(package)
    target.posterior.fisher = target.precision
    make, arguments = catalogue(package, target.posterior, target.stiffness)[name]
    target.check(make(), **arguments)


@pytest.mark.parametrize("name", NAMES)
def test_gaussian_posterior(name):
    check_gaussian(hamcmc, name)


ON_QUARTIC = {
    "sgld": lambda p, q: p.sgld(q.posterior.grad),
    "psgld": lambda p, q: p.psgld(q.posterior, decay=0.5, regularizer=0.5),
    "psgld-corrected": lambda p, q: p.psgld(q.posterior, decay=0.5, regularizer=0.5, correction=True),
    "sgrld-function": lambda p, q: p.sgrld(q.posterior.grad, metric),
    "naive": lambda p, q: p.naive(q.posterior.grad, memory=2, cosine=0.0),
}


def metric(theta):
    """Some positive definite matrix that depends on both coordinates."""
    x, y = theta
    return jnp.array([[1 + 3 * x**2, 0.5 * jnp.tanh(x * y)], [0.5 * jnp.tanh(x * y), 1 + y**2]])


def check_quartic(package, name):
    """The same on a target whose curvature varies, where a missing or wrong Γ shows."""
    target = Quartic(package)
    target.check(ON_QUARTIC[name](package, target), step_size=0.002, steps=1500, replicas=6000, bias=0.03)


@pytest.mark.parametrize("name", ["sgld", "psgld-corrected", "sgrld-function"])
def test_varying_curvature(name):
    check_quartic(hamcmc, name)


@pytest.mark.parametrize("name", ["psgld", "naive"])
def test_without_gamma_a_bias_remains(name):
    """The paper's proposition: a preconditioner that follows the position needs Γ."""
    with pytest.raises(AssertionError, match="off by"):
        check_quartic(hamcmc, name)


BASE, PSGLD, SGRLD, SGFS = (f"samplers/{f}.py" for f in ("base", "psgld", "sgrld", "sgfs"))
MUTATIONS = [
    # (file, text, broken text, check, sampler)
    (BASE, "root = jnp.sqrt(2 * step_size)", "root = jnp.sqrt(step_size)", check_gaussian, "sgld"),
    (BASE, "x + step_size * d", "x - step_size * d", check_gaussian, "sgld"),
    ("potential.py", "p + self.size * g", "p + len(self.data['x']) / 2 * g", check_gaussian, "sgld"),
    (
        "curvature.py",
        "root = jnp.sqrt(2 * jnp.asarray(step_size))",
        "root = jnp.sqrt(jnp.asarray(step_size))",
        check_gaussian,
        "hamcmc-3",
    ),
    ("curvature.py", "q = jnp.sqrt(s_y / s_b) * b + y", "q = jnp.sqrt(s_y / s_b) * b - y", check_gaussian, "hamcmc-3"),
    (
        PSGLD,
        "noise = jax.tree.map(lambda h, z: jnp.sqrt(h) * z, h, z)",
        "noise = jax.tree.map(lambda h, z: h * z, h, z)",
        check_gaussian,
        "psgld-corrected",
    ),
    (PSGLD, "d + _gamma(h, v, dv)", "d - _gamma(h, v, dv)", check_quartic, "psgld-corrected"),
    (PSGLD, "lambda g, h: 2 * g * h,", "lambda g, h: 2 * g * h * (1 - alpha),", check_quartic, "psgld-corrected"),
    (SGRLD, "ravel_pytree(g)[0]) + gamma", "ravel_pytree(g)[0]) - gamma", check_quartic, "sgrld-function"),
    (SGRLD, "noise = root.T @", "noise = root @", check_gaussian, "sgrld"),
    (SGFS, "xi = jnp.sqrt(2 * b / step_size)", "xi = jnp.sqrt(b / step_size)", check_gaussian, "sgfs"),
]


@pytest.mark.parametrize(("file", "old", "new", "check", "name"), MUTATIONS)
def test_broken_maths_is_noticed(file, old, new, check, name):
    with mutant(file, old, new) as package, pytest.raises(AssertionError, match="off|finite"):
        check(package, name)

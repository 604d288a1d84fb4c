"""Densities with one mode and an awkward shape: funnel, banana, ridge, heavy tails, bounds."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special, stats

import hamcmc
from tests import zoo
from tests.zoo import marginals
from tests.zoo.densities import beta, gamma, normal, student_t


@zoo.model
def gaussian_stiff() -> zoo.Case:
    """Gaussian in 50 dimensions, rotated, condition number 10⁶."""
    rng = np.random.default_rng(31)
    rotation = np.linalg.qr(rng.normal(size=(50, 50)))[0]
    variances = np.geomspace(1e-6, 1.0, 50)
    root = rotation / np.sqrt(variances)  # U = |rootᵀ x|²/2
    posterior = hamcmc.Posterior(lambda x: normal(x @ root))
    return zoo.Case(
        posterior,
        jnp.ones(50),
        lambda: {"theta": marginals.of_gaussian(np.zeros(50), rotation * variances @ rotation.T)},
    )


@zoo.model
def funnel() -> zoo.Case:
    """Neal's funnel in 10 dimensions: v ~ N(0, 3²), x | v ~ N(0, e^v)."""

    def exact():
        v = np.linspace(-30, 60, 9001)
        weights = stats.norm.pdf(v, 0, 3)
        mixture = stats.norm(0, np.exp(v / 2))
        grid = np.sinh(np.linspace(-12, 12, 4001))
        cdf = np.array([weights @ mixture.cdf(x) for x in grid]) / weights.sum()
        x = marginals.Marginals(np.zeros(9), np.full(9, np.exp(9 / 4)), np.zeros((5, 9)))
        x.quantiles[:] = np.interp(marginals.LEVELS, cdf, grid)[:, None]
        return {"v": marginals.of_distribution(stats.norm(0, 3)), "x": x}

    posterior = hamcmc.Posterior(lambda p: normal(p["v"], 0.0, 3.0) + normal(p["x"], 0.0, jnp.exp(p["v"] / 2)))
    return zoo.Case(posterior, {"v": jnp.zeros(()), "x": jnp.ones(9)}, exact, measure="quantiles", hard=True)


@zoo.model
def banana() -> zoo.Case:
    """A bent Gaussian: x ~ N(0, 10²), y | x ~ N(0.03 (x² − 100), 1), beside 3 independent dimensions."""

    def exact():
        z = np.linspace(-9, 9, 1801)
        bend = 3.0 * (z**2 - 1)
        weights = stats.norm.pdf(z) / stats.norm.pdf(z).sum()
        grid = np.linspace(-10, 150, 3201)
        cdf = np.array([weights @ stats.norm.cdf(y - bend) for y in grid])
        y = marginals.Marginals(np.asarray(0.0), np.sqrt(1 + 18.0), np.interp(marginals.LEVELS, cdf, grid))
        rest = marginals.of_distribution(stats.norm(), (3,))
        return {"x": marginals.of_distribution(stats.norm(0, 10)), "y": y, "z": rest}

    def log_density(p):
        return normal(p["x"], 0.0, 10.0) + normal(p["y"], 0.03 * (p["x"] ** 2 - 100), 1.0) + normal(p["z"])

    return zoo.Case(hamcmc.Posterior(log_density), {"x": jnp.zeros(()), "y": jnp.zeros(()), "z": jnp.zeros(3)}, exact)


@zoo.model
def quartic_ridge() -> zoo.Case:
    """The ridge of erratum 6: U = (x+y)⁴/4 + 2(x−y)² + x²/4 + y²/10."""

    def energy(x, y):
        return (x + y) ** 4 / 4 + 2 * (x - y) ** 2 + x**2 / 4 + y**2 / 10

    def exact():
        grid = np.linspace(-4, 4, 2001)
        table = -energy(grid[:, None], grid)
        return {
            "theta": marginals.stack([marginals.of_grid(grid, np.log(np.exp(table).sum(axis=a))) for a in (1, 0)]),
        }

    return zoo.Case(hamcmc.Posterior(lambda theta: -energy(theta[0], theta[1])), jnp.ones(2), exact)


@zoo.model
def student_t3() -> zoo.Case:
    """20 independent Student-t(3)."""
    return _heavy(3.0)


@zoo.model
def student_t1() -> zoo.Case:
    """20 independent Student-t(1), that is Cauchy: no mean."""
    return _heavy(1.0)


def _heavy(freedom: float) -> zoo.Case:
    def exact():
        m = marginals.of_distribution(stats.t(freedom), (20,))
        return {"theta": m if freedom > 2 else m._replace(mean=np.full(20, np.nan), sd=np.full(20, np.nan))}

    return zoo.Case(hamcmc.Posterior(lambda x: student_t(x, freedom)), jnp.zeros(20), exact, measure="quantiles")


@zoo.model
def multivariate_t() -> zoo.Case:
    """A multivariate Student-t(4) in 10 correlated dimensions: one radius for all of them."""
    rng = np.random.default_rng(32)
    root = np.linalg.qr(rng.normal(size=(10, 10)))[0] * np.geomspace(0.1, 10, 10)
    inverse = np.linalg.inv(root)

    def log_density(x):
        return -(4 + 10) / 2 * jnp.log1p(jnp.sum((inverse @ x) ** 2) / 4)

    def exact():
        return {"theta": marginals.of_distribution(stats.t(4, 0, np.sqrt(np.diag(root @ root.T))))}

    return zoo.Case(hamcmc.Posterior(log_density), jnp.zeros(10), exact, measure="quantiles")


@zoo.model
def laplace() -> zoo.Case:
    """15 independent double exponentials, whose gradient jumps at zero, of scales 0.1 to 10."""
    scale = np.geomspace(0.1, 10, 15)
    posterior = hamcmc.Posterior(lambda x: -jnp.sum(jnp.abs(x) / scale))
    return zoo.Case(posterior, jnp.ones(15), lambda: {"theta": marginals.of_distribution(stats.laplace(0, scale))})


@zoo.model
def ring() -> zoo.Case:
    """A ring of radius 3 and width 0.3 in the plane."""

    def exact():
        grid = np.linspace(-6, 6, 3001)
        radius = np.hypot(grid[:, None], grid)
        mass = np.exp(-0.5 * ((radius - 3) / 0.3) ** 2).sum(axis=0)
        m = marginals.of_grid(grid, np.log(np.maximum(mass, 1e-300)))
        return {"theta": marginals.stack([m, m])}

    def log_density(x):
        return normal(jnp.sqrt(jnp.sum(x**2)), 3.0, 0.3)

    return zoo.Case(hamcmc.Posterior(log_density), jnp.ones(2), exact)


@zoo.model
def simplex() -> zoo.Case:
    """A Dirichlet posterior of 8 shares, as log-ratios to the last of them; some shares are rare."""
    counts = np.array([120.0, 60.0, 30.0, 12.0, 5.0, 2.0, 0.0, 40.0]) + 0.5

    def exact():
        mean = special.digamma(counts[:-1]) - special.digamma(counts[-1])
        sd = np.sqrt(special.polygamma(1, counts[:-1]) + special.polygamma(1, counts[-1]))
        ratio = stats.betaprime(counts[:-1], counts[-1])
        return {"theta": marginals.of_transformed(ratio, np.log, mean, sd)}

    def log_density(theta):  # of the shares, times the Jacobian of the log-ratios, which is the product of the shares
        return counts @ jax.nn.log_softmax(jnp.concatenate([theta, jnp.zeros(1)]))

    return zoo.Case(hamcmc.Posterior(log_density), jnp.zeros(7), exact)


@zoo.model
def bounds() -> zoo.Case:
    """Bounded and positive parameters with mass at the bounds: truncated normals, a Beta(0.8, 3), gammas."""

    def log_density(p):
        truncated = normal(p["truncated"], np.array([0.0, 2.0, -3.0]), 1.0)
        return truncated + beta(p["share"], 0.8, 3.0) + gamma(p["rate"], np.array([0.7, 5.0]), np.array([1.0, 0.01]))

    def exact():
        centre = np.array([0.0, 2.0, -3.0])
        return {
            "truncated": marginals.of_distribution(stats.truncnorm(-1 - centre, 1 - centre, centre, 1.0)),
            "share": marginals.of_distribution(stats.beta(0.8, 3.0)),
            "rate": marginals.of_distribution(stats.gamma([0.7, 5.0], scale=[1.0, 100.0])),
        }

    support = {
        "truncated": hamcmc.bounded(-1.0, 1.0),
        "share": hamcmc.bounded(0.0, 1.0),
        "rate": hamcmc.positive(),
    }
    init = {"truncated": jnp.zeros(3), "share": jnp.array(0.5), "rate": jnp.ones(2)}
    return zoo.Case(hamcmc.Posterior(log_density, support=support), init, exact)

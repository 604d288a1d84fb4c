"""Compare two models of the same data by their evidence. Here the exact evidence is known, too."""

import jax.numpy as jnp
import numpy as np

import hamcmc
from hamcmc.target import linear_gaussian as lg

data = lg.simulate(np.random.default_rng(0), 200, np.eye(2), 1.0)
models = {"both features": data, "first feature only": lg.Data(data.a[:, :1], data.x)}

found = {}
for name, columns in models.items():
    found[name] = hamcmc.evidence(
        lg.linear_gaussian(columns, 1.0),  # its prior and likelihood are normalised, as the evidence needs
        "sghmc",
        jnp.zeros(columns.a.shape[1]),
        step_size=2e-3,
        num_samples=1000,
        warmup=300,
        temperatures=9,
    )
    exact = lg.log_evidence(columns, 1.0)
    print(f"{name}: {found[name].log_evidence:.2f} ± {found[name].standard_error:.2f}, exactly {exact:.2f}")
comparison = hamcmc.compare(found)
print("probabilities:", dict(zip(comparison.names, comparison.probability.round(3))))

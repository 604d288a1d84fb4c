"""What :mod:`benchmarks.seconds` does, with version 0.1.0: the mode, a control variate, and a run that looks for its ε.

It is a program of its own, because in its process ``hamcmc`` is that version.
"""

import json
import sys
import time


def main() -> None:
    """One process: rows and columns as arrays in a file, and when it was started."""
    path, started = sys.argv[1], float(sys.argv[2])
    import jax.numpy as jnp
    import numpy as np

    import hamcmc

    assert hamcmc.__version__ == "0.1.0", hamcmc.__file__
    imported = time.time()

    def log_prior(theta):
        return -0.5 * jnp.sum(theta**2)

    def log_likelihood(theta, row):
        x, y = row
        return -jnp.logaddexp(0.0, jnp.where(y > 0, -1.0, 1.0) * (x @ theta))

    stored = np.load(path)
    x, y = stored["x"], stored["y"]
    posterior = hamcmc.Posterior(log_prior, log_likelihood, (x, y))
    built = time.time()
    start = hamcmc.find_mode(posterior, jnp.zeros(x.shape[1]))
    posterior = hamcmc.control_variate(posterior, start)
    ready = time.time()
    how = {"batch_size": min(500, len(x) // 4), "num_samples": 500, "thin": 4, "progress": False}
    result = hamcmc.sample(posterior, "ensemble_hamcmc", start, **how)
    drawn = time.time()
    str(result.summary())
    finished = time.time()
    spent = result.settings["tuning"]["seconds"]
    found = {"import": imported - started, "data": built - imported, "mode": ready - built + spent}
    found |= {"sampling": result.meta["seconds"], "summary": finished - drawn}
    print(json.dumps(found | {"rest": finished - started - sum(found.values()), "total": finished - started}))


if __name__ == "__main__":
    main()

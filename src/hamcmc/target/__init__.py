"""What is sampled: log-densities, their gradients on minibatches, supports, modes and gradient estimators."""

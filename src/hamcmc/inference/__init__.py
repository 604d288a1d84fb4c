"""Inference: the one call, the compiled loop, the driver on the host, step-size tuning and model evidence."""

"""Ensembles of two halves that move in turn, each preconditioned by the curvature that the other one shows."""

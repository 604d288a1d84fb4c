"""Factorization of ratings: from a file to predictions with intervals."""

"""Factorization on many devices: the block partition, the sharded step, start-up of several processes."""

"""A run on disk: its directory, checkpoints, draws and results."""

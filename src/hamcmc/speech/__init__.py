"""Clean speech from noisy recordings."""

"""Clean speech from noisy recordings: :mod:`hamcmc.speech.denoise` for arrays, :mod:`hamcmc.speech.file` for files."""

# %% [markdown]
# # Clean speech from a noisy recording
#
# Two seconds of a synthetic voice in noise, cleaned. `denoise` takes stretches of a recording, so it works on a stream,
# too. [The page on speech](../speech.md) has the command and what was measured.

# %%
import numpy as np
from matplotlib.figure import Figure

import hamcmc
from hamcmc.speech.metrics import si_sdr

rate = 8000
t = np.arange(2 * rate) / rate
pitch = 140 + 20 * np.sin(2 * np.pi * 0.7 * t)
phase = 2 * np.pi * np.cumsum(pitch) / rate
voice = sum(np.sin(k * phase) / k for k in range(1, 12)) * np.clip(np.sin(2 * np.pi * 2 * t), 0, None)
noisy = 0.1 * voice + 0.05 * np.random.default_rng(0).normal(size=len(t))
parts = hamcmc.denoise([noisy[:, None]], rate, iterations=40)
clean = np.concatenate([part.audio for part in parts])[:, 0]
print(f"SI-SDR before {si_sdr(voice, noisy):.1f} dB, after {si_sdr(voice, clean):.1f} dB")

# %%
figure = Figure(figsize=(8, 3), layout="constrained")
for ax, sound, name in zip(figure.subplots(1, 2, sharey=True), (noisy, clean), ("before", "after")):
    ax.specgram(sound, NFFT=256, Fs=rate, noverlap=192, cmap="magma", vmin=-110, vmax=-30)
    ax.set(title=name, xlabel="seconds")
figure.axes[0].set_ylabel("Hz")

"""Clean speech from a noisy recording. Needs the extra: pip install 'hamcmc[audio]'."""

import numpy as np
import soundfile

import hamcmc
from hamcmc.speech.metrics import si_sdr

# A recording to start from: syllables of harmonics with pauses between them, and noise.
rate = 8000
t = np.arange(2 * rate) / rate
voice = sum(np.sin(2 * np.pi * 140 * k * t) / k for k in range(1, 12)) * np.clip(np.sin(2 * np.pi * 2 * t), 0, None)
noise = np.random.default_rng(0).normal(size=len(t))
noisy = 0.1 * voice + 0.05 * noise
soundfile.write("noisy.wav", noisy, rate)

samples, rate = soundfile.read("noisy.wav", always_2d=True)
parts = hamcmc.denoise([samples], rate, iterations=40)
clean = np.concatenate([part.audio for part in parts])
soundfile.write("clean.wav", clean, rate)
print(f"SI-SDR before {si_sdr(voice, noisy):.1f} dB, after {si_sdr(voice, clean[:, 0]):.1f} dB")

"""The paper's figures and theory as commands: ``REPRODUCTIONS[name].run(out, quick=…, seed=…, progress=…)``."""

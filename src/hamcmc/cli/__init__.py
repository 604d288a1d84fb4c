"""The shell: ``hamcmc`` and its commands."""

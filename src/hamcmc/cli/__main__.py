"""``python -m hamcmc.cli``, the same as ``hamcmc``."""

from hamcmc.cli.app import main

main()

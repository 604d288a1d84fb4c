# Every target works from a fresh clone: it first makes .venv and installs pinned versions.
PYTHON ?= python3
BIN := .venv/bin
CODE := src tests benchmarks tools examples hatch_build.py $(wildcard docs/*.py)

.PHONY: demo test pytest test-slow test-browser lint release coverage mutation calibration zoo soak bench pages reproduce docs clean

demo: .venv/installed
	$(BIN)/hamcmc demo --out demo

test: .venv/installed-test  # side by side, because the checks keep only one core busy
	@$(MAKE) --no-print-directory -j 2 lint pytest

pytest: .venv/installed-test
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

test-slow: .venv/installed-test
	$(BIN)/pytest -m slow

test-browser: .venv/installed-test  # fails without Chromium, where `make test` skips
	HAMCMC_BROWSER=required $(BIN)/pytest -m "slow or not slow" tests/report/test_browser.py

lint: .venv/installed-test  # style, the order of imports between folders, types
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/lint-imports --no-logo --no-cache
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

release: .venv/installed  # builds dist/ and tries each wheel in empty environments: make release PYTHONS="python3.11 python3.14"
	$(BIN)/python tools/check_release.py $(PYTHONS)

coverage: .venv/installed-test .venv/installed-dev  # lines of src/ that `make test` runs
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --cov=src/hamcmc --cov-report=term-missing:skip-covered

mutation: .venv/installed-test  # counts how many small faults in the curvature and the samplers the tests notice
	$(BIN)/python -m tools.mutation_score

calibration: .venv/installed-test  # simulation-based calibration of every sampler on two models
	$(BIN)/python -m tests.hardening.sbc
	$(BIN)/pytest -m slow tests/hardening/test_calibration.py -k power

zoo: .venv/installed-test  # hours: samples every posterior of tests/zoo by one automatic call; ZOO="--names gp --seeds 0 --x32"
	$(BIN)/python -m tests.zoo run --resume --out zoo.json $(ZOO)

soak: .venv/installed-test  # an hour of all kinds of work, in which memory must not grow
	$(BIN)/python -m tools.soak

bench: .venv/installed-bench
	$(BIN)/python -m benchmarks

pages: .venv/installed-test  # fills in README and docs from the kept results
	$(BIN)/python -m benchmarks --pages

reproduce: .venv/installed  # hours, and resumable: make reproduce REPRODUCE="--ratings ml-1m/ratings.dat --corpus NOIZEUS"
	$(BIN)/hamcmc reproduce all $(REPRODUCE)

docs: .venv/installed-docs
	$(BIN)/python -m benchmarks --pages
	$(BIN)/python -m docs.figures
	$(BIN)/sphinx-build -E -a -W --keep-going -q -b html docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt hatchling editables jax  # what the build needs: it uses this environment
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e '.[ratings,audio,report,numpyro]'
	touch $@

.venv/installed-bench: .venv/installed-cython  # pesq has no wheel, and its source needs Cython

.venv/installed-cython: .venv/installed
	$(BIN)/pip install -q -c constraints.txt cython
	touch $@

.venv/installed-%: .venv/installed
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e '.[$*]'
	touch $@

clean:
	rm -rf .venv demo reproduced

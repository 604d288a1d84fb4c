# Every target works from a fresh clone: it first makes .venv and installs pinned versions.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow test-browser lint release coverage mutation calibration soak bench reproduce docs clean

demo: .venv/installed
	$(BIN)/hamcmc demo --out demo

test: .venv/installed-test
	$(BIN)/ruff check src tests benchmarks tools
	$(BIN)/ruff format --check src tests benchmarks tools
	$(BIN)/pytest -n 2

test-slow: .venv/installed-test
	$(BIN)/pytest -m slow

test-browser: .venv/installed-test  # fails where make test skips, for want of a Chromium
	HAMCMC_BROWSER=required $(BIN)/pytest tests/report/test_browser.py

lint: .venv/installed-test
	$(BIN)/ruff check src tests benchmarks tools
	$(BIN)/ruff format --check src tests benchmarks tools
	$(BIN)/pyright

release: .venv/installed  # builds dist/, and tries each wheel in empty environments: make release PYTHONS="python3.11 python3.14"
	$(BIN)/python tools/check_release.py $(PYTHONS)

coverage: .venv/installed-test .venv/installed-dev  # of src/ by lines, by what `make test` runs
	$(BIN)/pytest -n 2 --cov=src/hamcmc --cov-report=term-missing:skip-covered

mutation: .venv/installed-test  # how many small faults in the curvature and the samplers the tests notice
	$(BIN)/python tools/mutation_score.py

calibration: .venv/installed-test  # simulation-based, of every sampler on two models
	$(BIN)/python -m tests.hardening.sbc
	$(BIN)/pytest -m slow tests/hardening/test_calibration.py -k power

soak: .venv/installed-test  # an hour of all kinds of work, in which memory must not grow
	$(BIN)/python tools/soak.py --minutes 60

bench: .venv/installed-bench
	$(BIN)/python -m benchmarks

reproduce: .venv/installed
	for name in fig1 fig2 fig3 fig4 fig5 scale theorem proposition bias; do $(BIN)/hamcmc reproduce $$name || exit 1; done

docs: .venv/installed-docs
	$(BIN)/python docs/figures.py
	$(BIN)/sphinx-build -E -a -W --keep-going -q -b html docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt hatchling editables jax  # what a build needs, not twice in rooms of its own
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e .
	touch $@

.venv/installed-%: .venv/installed
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e '.[$*]'
	touch $@

clean:
	rm -rf .venv demo reproduced

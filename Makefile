# The verbs: demo test check bench figures sim clean. Each sets up what it needs on first use, into .venv.
# Variables: PYTHON (3.11 or later), STAGE (bench), ARGS (handed to pytest, the demo or figures),
# SEEDS FIRST_SEED JOBS SEED (sim).

PYTHON ?= python3
BIN := .venv/bin
COMPILED := $(shell find src -name '*_cy.py')
# TRIMTAB_PURE=1 in the environment interprets these; what was compiled stays as it is.
READY := .venv/$(if $(filter 1,$(TRIMTAB_PURE)),installed,built)

.PHONY: help demo test check bench figures sim clean

help:
	@echo 'make demo    real flights through an embedded cluster and Spark; results in demo-out/'
	@echo 'make test    every test          (ARGS="tests/unit -k wire" for some)'
	@echo 'make check   format, lint, types, which room imports which'
	@echo 'make bench   measurements beside Apache Kafka, one JSON object a line (STAGE=broker for one)'
	@echo 'make figures all of that into docs/figures.json, and from there into docs/measured.md, README.md …'
	@echo 'make sim     the cluster and its clients in virtual time; SEEDS=200 runs of it under faults,'
	@echo '             from FIRST_SEED=n on, in JOBS=2 processes; SEED=n repeats one with its trace'
	@echo 'make clean   back to a fresh clone'

demo: $(READY)
	$(BIN)/trimtab demo $(ARGS)

test: $(READY)
	$(BIN)/python -m pytest $(ARGS)

sim: $(READY)
ifdef ARGS
	$(BIN)/python -m pytest tests/simulation $(ARGS)
else ifdef SEED
	@$(BIN)/python -m trimtab.sim --seed $(SEED)
else ifdef SEEDS
	@$(BIN)/python -m trimtab.sim --seeds $(SEEDS) --first-seed $(or $(FIRST_SEED),0) \
	    --jobs $(or $(JOBS),1)
else
	$(BIN)/python -m pytest tests/simulation
endif

bench: $(READY)
	@$(BIN)/python -m benchmarks $(STAGE)

figures: .venv/built
	@$(BIN)/python -m benchmarks.figures $(ARGS)

check: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

clean:
	rm -rf .venv build demo-out src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis \
	    .import_linter_cache spark-warehouse metastore_db derby.log
	find src tests benchmarks -name '*.so' -delete
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the environment: each step leaves a file, and is done again when what it depends on changes ---

.venv/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "trimtab needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
	         'Name another one: make PYTHON=python3.12'; exit 1; }
	@.ci/step '[1/4] a virtual environment in .venv' $(PYTHON) -m venv .venv || { \
	    echo 'Python cannot make virtual environments here. On Debian: apt install python3-venv'; \
	    rm -rf .venv; exit 1; }
	@touch $@

.venv/required: .venv/created requirements.lock
	@.ci/step '[2/4] the locked requirements, 600 MB the first time' $(BIN)/python -m pip install \
	    --disable-pip-version-check --progress-bar off --requirement requirements.lock
	@touch $@

.venv/installed: .venv/required pyproject.toml
	@TRIMTAB_PURE=1 .ci/step '[3/4] trimtab itself, from src/' $(BIN)/python -m pip install \
	    --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.venv/built: .venv/installed setup.py $(COMPILED)
	@.ci/step '[4/4] the hot modules, compiled' $(BIN)/python setup.py build_ext --inplace
	@touch $@

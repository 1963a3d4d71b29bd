# The verbs: demo test check bench figures sim docs dist clean. Each sets up what it needs on first use, into .venv.
# Variables: PYTHON (3.11 or later), STAGE (of bench), ARGS (passed to pytest, the demo or figures),
# SEEDS, FIRST_SEED, JOBS and SEED (of sim).

PYTHON ?= python3
BIN := .venv/bin
COMPILED := $(shell find src -name '*_cy.py')
# Without ARGS all tests run, in a process per core.
ALL_TESTS := --quiet -n auto --dist loadgroup
# With TRIMTAB_PURE=1 in the environment these run interpreted, even if compiled files exist.
READY := .venv/$(if $(filter 1,$(TRIMTAB_PURE)),installed,built)

.PHONY: help demo test check bench figures sim docs dist clean

help:
	@echo 'make demo    send real flight data through a cluster and Spark; see demo-out/'
	@echo 'make test    run all tests (ARGS="tests/unit -k wire" runs some)'
	@echo 'make check   check format, lint, types, and imports between modules'
	@echo 'make bench   compare with Apache Kafka; prints JSON lines (STAGE=broker runs one stage)'
	@echo 'make figures run all benchmarks; write docs/figures.json, docs/measured.md, README.md and others'
	@echo 'make sim     run the simulation tests; SEEDS=200 runs 200 random simulations from'
	@echo '             FIRST_SEED=n on in JOBS=2 processes; SEED=n repeats one with its trace'
	@echo 'make docs    build the site into build/site, and check its links'
	@echo 'make dist    build the source distribution and a wheel into dist/, and list what they need'
	@echo 'make clean   delete everything that is not in the repository'

demo: $(READY)
	$(BIN)/trimtab demo $(ARGS)

test: $(READY)
	$(BIN)/python -m pytest $(or $(ARGS),$(ALL_TESTS))

sim: $(READY)
ifdef ARGS
	$(BIN)/python -m pytest tests/simulation $(ARGS)
else ifdef SEED
	@$(BIN)/python -m lab.reliability --seed $(SEED)
else ifdef SEEDS
	@$(BIN)/python -m lab.reliability --seeds $(SEEDS) --first-seed $(or $(FIRST_SEED),0) \
	    --jobs $(or $(JOBS),1)
else
	$(BIN)/python -m pytest tests/simulation
endif

bench: $(READY)
	@$(BIN)/python -m lab.benchmarks $(STAGE)

figures: .venv/built
	@$(BIN)/python -m lab.benchmarks.figures $(ARGS)

check: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest --quiet tests/unit/test_circles.py

# With AXE=…/axe.min.js (`npm install axe-core`) and Chromium every page is also looked at.
docs: $(READY) .venv/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@$(BIN)/python -m website.check

# Packages for an index or for other machines. build/release gets sbom.json (CycloneDX) and licences.md:
# the packages that the wheel needs with all extras, in the locked versions.
RELEASE := build/release
IN_RELEASE := $(RELEASE)/tools/bin/
EXTRAS = $(shell $(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"], sep=",")')

dist:
	rm -rf dist $(RELEASE)
	@.ci/step '[1/4] the tools' sh -ec '$(PYTHON) -m venv $(RELEASE)/tools; \
	    $(IN_RELEASE)pip install --upgrade "pip>=25.1"; $(IN_RELEASE)pip install --group release'
	@.ci/step '[2/4] the packages, in dist' $(IN_RELEASE)python -m build
	@$(IN_RELEASE)twine check --strict dist/*
	@.ci/step '[3/4] the wheel with all extras, 600 MB the first time' sh -ec '\
	    $(PYTHON) -m venv --without-pip $(RELEASE)/installed; \
	    $(IN_RELEASE)pip --python $(RELEASE)/installed install --constraint requirements.lock \
	    "$$(echo dist/*.whl)[$(EXTRAS)]"'
	@.ci/step '[4/4] what it needs, in $(RELEASE)' sh -ec '\
	    $(IN_RELEASE)cyclonedx-py environment --output-reproducible \
	        --output-file $(RELEASE)/sbom.json $(RELEASE)/installed; \
	    $(IN_RELEASE)pip-licenses --python $(RELEASE)/installed/bin/python --format markdown \
	        --with-urls --output-file $(RELEASE)/licences.md'
	@ls -l dist $(RELEASE)/sbom.json $(RELEASE)/licences.md

clean:
	rm -rf .venv build dist demo-out src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis \
	    .import_linter_cache spark-warehouse metastore_db derby.log
	find src tests lab -name '*.so' -delete
	find src tests lab -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the environment: each step writes a file, and runs again when its prerequisites change ---

.venv/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "trimtab needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
	         'Name another one: make PYTHON=python3.12'; exit 1; }
	@.ci/step '[1/4] a virtual environment in .venv' $(PYTHON) -m venv .venv || { \
	    echo 'Python cannot create virtual environments here. On Debian: apt install python3-venv'; \
	    rm -rf .venv; exit 1; }
	@touch $@

.venv/required: .venv/created requirements.lock
	@.ci/step '[2/4] the locked requirements, 600 MB the first time' $(BIN)/python -m pip install \
	    --disable-pip-version-check --progress-bar off --no-compile --requirement requirements.lock
	@touch $@

.venv/installed: .venv/required pyproject.toml setup.py
	@TRIMTAB_PURE=1 .ci/step '[3/4] trimtab itself, from src/' $(BIN)/python -m pip install \
	    --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(BIN)/python -c 'import pathlib, sysconfig; \
	    (pathlib.Path(sysconfig.get_path("purelib")) / "trimtab-lab.pth").write_text(str(pathlib.Path.cwd()) + "\n")'
	@touch $@

.venv/built: .venv/installed setup.py $(COMPILED)
	@.ci/step '[4/4] the hot modules, compiled' $(BIN)/python setup.py build_ext --inplace
	@touch $@

.venv/site: .venv/required website/requirements.lock
	@.ci/step 'what builds the site, 60 MB' $(BIN)/python -m pip install \
	    --disable-pip-version-check --progress-bar off --no-compile \
	    --constraint requirements.lock --requirement website/requirements.lock
	@touch $@

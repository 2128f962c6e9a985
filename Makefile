# Every target creates the environment in .venv first if it is missing.
PYTHON ?= python3
BIN := .venv/bin
CORE := .venv/core
READY := .venv/ready
EXTRAS := dev dp huggingface text diffusion federated mlflow cluster accelerate compiled view table docs
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal
LINTED := src tests benchmarks examples scripts docs/*.py
comma := ,
space := $(subst ,, )

.PHONY: demo check test lint docs bench lock clean

demo: $(CORE)  ## audit bundled faces and write demo/page.html; installs the core only
	$(BIN)/vestige demo --out demo

check: $(READY)  ## the inner loop: ruff and the quick tests
	$(BIN)/ruff check $(LINTED)
	VESTIGE_PROFILE=quick $(PYTEST) -m "not slow and not browser and not cluster and not peer"

test: $(READY)  ## every test that this machine can run, one thread on each core
	$(PYTEST)

lint: $(READY)  ## ruff and pyright
	$(BIN)/ruff check $(LINTED)
	$(BIN)/ruff format --check $(LINTED)
	$(BIN)/pyright

docs: $(READY)  ## the documentation site, into site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/python -m mkdocs build --strict

bench: $(READY)  ## measure what is claimed; slow
	short=0; for script in benchmarks/*.py; do $(BIN)/python $$script || short=1; done; exit $$short

LOCK := uv pip compile --quiet --universal --python-version 3.11.5 --generate-hashes --no-emit-index-url \
	--no-header --no-annotate --constraint constraints.txt pyproject.toml

lock:  ## write the hashes of all files behind constraints.txt; needs uv
	$(LOCK) --output-file requirements.lock
	$(LOCK) $(addprefix --extra ,$(EXTRAS)) --output-file requirements-all.lock

clean:
	rm -rf .venv demo runs site build dist src/*.egg-info .pytest_cache .ruff_cache .hypothesis

$(CORE): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) .
	touch $(CORE)

$(READY): $(CORE)
	$(INSTALL) '.[$(subst $(space),$(comma),$(EXTRAS))]'
	touch $(READY)

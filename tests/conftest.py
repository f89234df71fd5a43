"""Sets the process up before jax is imported: eight virtual CPU devices, a quiet TensorFlow, and
a folder of compiled programs.

Also runs small enough to be tests.
"""

import gc
import itertools
import os
import pathlib
import re
import shutil
import sys
import tempfile

import pytest

# jax 0.6.2 deadlocks on several virtual devices unless NPROC widens its thread pool.
os.environ.setdefault("NPROC", "32")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("TROUPE_COMPILATION_CACHE", "off")
# What one process of a session compiles the others read: workers, and the processes tests start.
_COMPILED = None
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _COMPILED = os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="troupe-compiled")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# The programs of tests are many and run little, also in the processes that tests start: those of
# `TROUPE_FULL=1` alone, and of tests that ask for `optimized`, are compiled as users' are.
if not os.environ.get("TROUPE_FULL"):
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
_DEVICES = "--xla_force_host_platform_device_count=8"
if _DEVICES not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}".strip()


def pytest_unconfigure():
    if _COMPILED:
        shutil.rmtree(_COMPILED, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Files stay whole, but for the longest: of these, tests that share what is made for one case.
    Compiled runs share their programs, which one worker compiles once. Tests with Ray clusters
    follow one another, for a start waits only 30 s."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            for folder in ("/distributed/ray/", "/launch/compiled/"):
                if folder in nodeid:
                    return folder
            file, case = super()._split_scope(nodeid), nodeid.partition("[")[2].rstrip("]")
            if file.endswith(("semantics/test_semantics.py", "programs/test_programs.py")):
                return f"{file} {case.partition('-')[0]}"  # model-mesh-schedule, program-schedule
            if file.endswith("agents/test_agents.py"):
                return f"{file} {case.rpartition('-')[2]}"  # case, schedule-case
            return file

    return Scheduling(config, log)


def pytest_collection_modifyitems(items):
    """What takes one worker long comes first, as at the end it would be alone with it: Ray
    clusters, compiled runs, and the files that are about the whole package."""

    def place(item):
        file = item.nodeid.partition("::")[0]
        firsts = "/distributed/ray/" in file, "/launch/compiled/" in file, file.count("/") == 1
        return firsts.index(True) if any(firsts) else len(firsts)

    items.sort(key=place)


def pytest_collection_finish():
    """Has the garbage collector look at what was imported never again, and seldom at the rest:
    tracing makes many objects, of which few stay, and in a worker of millions a look takes long."""
    gc.freeze()
    gc.set_threshold(50_000, 20)


_MAPS = pathlib.Path("/proc/self/maps")
_MOST_MAPS = 25_000
"""Of the 65,530 parts of memory that Linux gives a process, beyond which loading a program ends it.
A compiled program takes about ten."""
_finished = itertools.count(1)


def pytest_runtest_logfinish():
    """Drops compiled programs before there are too many of them."""
    if next(_finished) % 10 or not _MAPS.exists():
        return
    with _MAPS.open() as maps:
        if sum(1 for _ in maps) < _MOST_MAPS:
            return
    import jax

    jax.clear_caches()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """Forgets the modules that a test has written and imported, for which the next import of that
    name would be taken."""
    yield
    if "tmp_path" in item.funcargs:
        folder = f"{item.funcargs['tmp_path']}{os.sep}"
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(folder):
                del sys.modules[name]


@pytest.fixture
def optimized():
    """Compiles as users do."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


TINY = {
    "hidden_sizes": "8",
    "batch_size": 4,
    "min_replay_size": 16,
    "max_replay_size": 500,
    "samples_per_insert": 2.0,
    "steps_per_dispatch": 2,
    "epsilon_decay_steps": 100,
    "num_envs": 2,
}


@pytest.fixture(scope="session")
def tiny():
    """Makes recipes of a DQN that learns a few steps: `tiny(seed=3, config={...})`."""

    from troupe.launch.experiment import Checkpointing, Evaluation
    from troupe.launch.specification.recipe import Recipe

    def make(config=(), evaluation=(), checkpointing=(), **fields):
        return Recipe(
            **{
                "agent": "dqn",
                "env": "CartPole-v1",
                "steps": 200,
                "config": {**TINY, **dict(config)},
                "evaluation": Evaluation(
                    **{"every": 80, "episodes": 3, "final_episodes": 4, **dict(evaluation)}
                ),
                "checkpointing": Checkpointing(**dict(checkpointing)),
                **fields,
            }
        )

    return make


DOCS = pathlib.Path(__file__).parent.parent / "docs"
MODULES_OF = (
    "agents.md",
    "compiled.md",
    "environments.md",
    "tokens.md",
    "tutorial/agent.md",
    "tutorial/environment.md",
)
"""Pages of docs/ that have modules."""


def code_of(page):
    """Python code of a page of docs/: {file: code} of the blocks that name one, and the rest."""
    files, rest = {}, []
    for block in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL):
        named = re.match(r"# (\w+\.py)\n", block)
        if named:
            files[named.group(1)] = block
        else:
            rest.append(block)
    return files, rest


@pytest.fixture(scope="session")
def pages():
    """Reads pages: `pages("agents.md") -> ({file: code}, [other code])`."""
    return code_of


@pytest.fixture(scope="session")
def documented(tmp_path_factory):
    """A folder with the modules of the pages of docs/ that have some, on the path."""
    folder = tmp_path_factory.mktemp("documented")
    for page in MODULES_OF:
        for name, code in code_of(page)[0].items():
            (folder / name).write_text(code)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))

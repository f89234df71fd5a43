"""The first tier: one process trains without TensorFlow, acme, Reverb or Launchpad, and at once."""

import json

import pytest

from .processes import python

pytestmark = pytest.mark.smoke

FORBIDDEN = ("tensorflow", "acme", "reverb", "launchpad", "tree_math", "rlax", "torch")

# What crosses a process; it may import the second tier.
SECOND_TIER = (
    "troupe.agents.replay.reverb",
    "troupe.launch.distributed",
)

REFUSE = f"""
import importlib.abc, sys

FORBIDDEN = {FORBIDDEN}

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in FORBIDDEN:
            raise ImportError(f"{{name}} is refused")

sys.meta_path.insert(0, Refuse())
"""

IMPORT_ALL = """
import importlib, json, pathlib
import troupe

root = pathlib.Path(troupe.__file__).parent
done, failed = [], {}
for floor in ("environments", "partitioning", "agents", "launch", "baselines"):
    for path in sorted((root / floor).rglob("*.py")):
        name = ".".join(("troupe", *path.relative_to(root).with_suffix("").parts))
        name = name.removesuffix(".__init__")
        if name.startswith(tuple(sys.argv[1:])):
            continue
        try:
            importlib.import_module(name)
            done.append(name)
        except ImportError as error:
            failed[name] = str(error)
print(json.dumps([done, failed]))
"""

TRAIN = """
from troupe.baselines import command

out, agent = sys.argv[1:]
sys.argv[1:] = ["train", agent, "--env", "CartPole-v1", "--steps", "1500", "--out", out]
code = command.main()
assert not {name.partition(".")[0] for name in sys.modules} & {*FORBIDDEN}
sys.exit(code)
"""


def test_every_module_but_those_of_the_second_tier_imports_without_it():
    done, failed = json.loads(python(REFUSE + IMPORT_ALL, *SECOND_TIER))
    assert not failed
    assert {"troupe.launch.local.run", "troupe.agents.dqn.builder"} < {*done}


@pytest.mark.parametrize("agent", ["dqn", "ppo"])
def test_an_agent_trains_without_the_second_tier(tmp_path, agent):
    python(REFUSE + TRAIN, tmp_path / "run", agent)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["actor_steps"] > 1500 - 8


HEAVY = {"jax", "gymnasium", "matplotlib", "rich", "haiku", "tensorboardX"}


@pytest.mark.parametrize(
    "statement",
    [
        "import troupe",
        "import troupe.launch; troupe.launch.Experiment",
        "from troupe.baselines import command; command.main()",
        "from troupe.baselines import command; sys.argv[1] = 'list'; command.main()",
        "from troupe.baselines import command; sys.argv.insert(1, 'train'); command.main()",
    ],
)
def test_what_is_slow_to_import_waits_until_it_is_used(statement):
    script = f"""
        import sys
        sys.argv[1:] = ["--help"]
        try:
            {statement}
        except SystemExit:
            pass
        heavy = {HEAVY} & {{name.partition(".")[0] for name in sys.modules}}
        assert not heavy, heavy
    """
    python(script)


def test_who_acts_loads_no_partitioner():
    script = """
        import sys
        import troupe.agents.dqn, troupe.launch.factory
        from troupe.launch.distributed.roles import actor, evaluator, replay_role
        from troupe.launch.specification.recipe import Recipe
        Recipe("dqn", "CartPole-v1", steps=10).experiment()
        assert "troupe.partitioning" not in sys.modules
    """
    python(script)

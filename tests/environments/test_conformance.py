"""Every kind of environment keeps dm_env's contract, as dm_env's own tests define it."""

import numpy as np
import pytest
import tree
from absl.testing import absltest
from dm_env import test_utils

from troupe import environments

# One row for each adapter, each kind of space and each fake.
IDS = [
    "CartPole-v1",
    "CartPoleMasked-v1",
    "PendulumMasked-v1",
    "Acrobot-v1",
    "Pendulum-v1",
    "LunarLander-v3",
    "FrozenLake-v1",
    "Blackjack-v1",
    "HalfCheetah-v5",
    "ALE/Pong-v5",
    "MinAtar/Breakout-v1",
    "jax:CartPole-v1",
    "jax:Pendulum-v1",
    "jax:pgx/minatar-breakout",
    "jax:pgx/tic_tac_toe",
    "tokens:addition",
    "tokens:reverse?length=3",
    "tokens:reasoning_gym/chain_sum?max_terms=2&time_limit=none",
    "fake/continuous",
    "fake/discrete",
    "fake/image",
    "fake/match",
    "fake/nested",
    "fake/ragged",
]


class Conformance(test_utils.EnvironmentTestMixin, absltest.TestCase):
    """Steps random actions for long enough to see the ends of episodes, where they are short."""

    id = ""

    def make_object_under_test(self):
        return environments.make(self.id, seed=3)

    def make_action_sequence(self):
        random = np.random.default_rng(0)

        def draw(spec):
            if spec.dtype.kind == "f":
                return random.uniform(spec.minimum, spec.maximum, spec.shape).astype(spec.dtype)
            return random.integers(spec.minimum, spec.maximum, spec.shape, endpoint=True)

        for _ in range(60):
            yield tree.map_structure(draw, self.environment.action_spec())


CASES = [(id, name) for id in IDS for name in sorted(dir(Conformance)) if name.startswith("test_")]


@pytest.mark.parametrize(("id", "test"), CASES)
def test_conforms_to_dm_env(id, test):
    if id.startswith("jax:pgx/"):
        pytest.importorskip("pgx")
    if id.startswith("tokens:reasoning_gym/"):
        pytest.importorskip("reasoning_gym")
    case = type("Case", (Conformance,), {"id": id})(test)
    result = case.run()
    assert result is not None
    problems = [text for _, text in result.failures + result.errors]
    assert not problems, problems[0]


# pytest would collect the class itself as well, without an id.
Conformance.__test__ = False

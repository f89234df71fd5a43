"""What a masked environment hides, and that it hides nothing else."""

import numpy as np

from troupe import environments


def test_masked_cartpole_is_cartpole_without_its_velocities():
    masked, whole = (
        environments.make(id, seed=5, num_envs=2) for id in ("CartPoleMasked-v1", "CartPole-v1")
    )
    seen, known = masked.reset(), whole.reset()
    actions = np.random.default_rng(0).integers(0, 2, (60, 2)).astype(np.int32)
    for action in actions:
        assert seen.observation.shape == (2, 2)
        assert seen.observation.dtype == np.float32
        np.testing.assert_array_equal(seen.observation, known.observation[:, [0, 2]])
        for name in ("step_type", "reward", "discount"):
            np.testing.assert_array_equal(getattr(seen, name), getattr(known, name))
        seen, known = masked.step(action), whole.step(action)
    assert (seen.step_type == known.step_type).all()


def test_masked_cartpole_is_cut_after_as_many_steps():
    spec = environments.make_spec(environments.make("CartPoleMasked-v1", seed=0))
    whole = environments.make_spec(environments.make("CartPole-v1", seed=0))
    np.testing.assert_array_equal(spec.observations.minimum, whole.observations.minimum[::2])
    assert spec.actions == whole.actions
    short = environments.make("CartPoleMasked-v1", seed=0, max_episode_steps=3)
    kinds = [short.reset().step_type] + [short.step(0).step_type for _ in range(3)]
    assert [int(kind) for kind in kinds] == [0, 1, 1, 2]


def test_masked_pendulum_is_pendulum_without_its_velocity():
    masked, whole = (
        environments.make(id, seed=3, num_envs=2) for id in ("PendulumMasked-v1", "Pendulum-v1")
    )
    seen, known = masked.reset(), whole.reset()
    for action in np.random.default_rng(0).uniform(-2, 2, (210, 2, 1)).astype(np.float32):
        assert seen.observation.shape == (2, 2)
        np.testing.assert_array_equal(seen.observation, known.observation[:, :2])
        for name in ("step_type", "reward", "discount"):
            np.testing.assert_array_equal(getattr(seen, name), getattr(known, name))
        seen, known = masked.step(action), whole.step(action)

"""What players of the fake environments do, as data."""

import warnings

import jax
import numpy as np
from dm_env import specs

from troupe import environments
from troupe.agents.replay.offline import Episode, of_episodes
from troupe.environments import action_masks


def perfect(environment):
    """The player `act(observation) -> action` of `fake/match` that is always right."""
    seen = action_masks.visible(environment.observation_spec())
    places = np.linspace(-1, 1, seen.shape[0], dtype=np.float32)

    def right(spec, shown):
        if spec.dtype == np.float32:
            return places[[shown]]
        digits = shown >> np.arange(spec.shape[0]) & 1 if spec.shape else shown
        return np.asarray(digits, spec.dtype)

    def act(observation):
        shown = np.argmax(action_masks.visible(observation))
        return jax.tree.map(lambda spec: right(spec, shown), environment.action_spec())

    return act


def episodes(environment, count, act=None):
    """Whole ones of one environment, whose player is `act`; None: of `fake/match`, perfect ones."""
    act = act or perfect(environment)
    for _ in range(count):
        timestep = environment.reset()
        seen, acted, outcomes = [timestep.observation], [], []
        while not timestep.last():
            action = act(timestep.observation)
            timestep = environment.step(action)
            seen.append(timestep.observation)
            acted.append(action)
            outcomes.append((timestep.reward, timestep.discount))
        reward, discount = np.array(outcomes, np.float32).T
        observation, action = (
            jax.tree.map(lambda *x: np.stack(x), *each) for each in (seen, acted)
        )
        yield Episode(observation, action, reward, discount)


def write_minari(name, played, observation_space, action_space):
    """Writes episodes as a dataset of Minari, of these spaces."""
    import minari
    from minari.data_collector import EpisodeBuffer

    buffers = [
        EpisodeBuffer(
            observations=one.observation,
            actions=one.action,
            rewards=one.reward.astype(np.float64).tolist(),
            terminations=one.discount == 0.0,
            truncations=np.zeros(len(one.discount), bool),
        )
        for one in played
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of what else could be said of it.
        minari.create_dataset_from_buffers(
            name, buffer=buffers, observation_space=observation_space, action_space=action_space
        )


def match(count=40, mistakes=0.0, **options):
    """A dataset of so many episodes of `fake/match`, in which a share of the actions is drawn."""
    environment = environments.make("fake/match", seed=7, **options)
    spec = environments.make_spec(environment)
    right, random = perfect(environment), np.random.default_rng(7)

    def act(observation):
        if random.random() < mistakes:
            mask = action_masks.find(observation)
            return jax.tree.map(lambda part: _draw(random, part, mask), spec.actions)
        return right(observation)

    played = episodes(environment, count, act)
    return of_episodes(spec.observations, spec.actions, played, "a player of `fake/match`")


def drawn(env, count=40, **options):
    """A dataset of so many episodes of any environment, whose actions are drawn uniformly."""
    environment = environments.make(env, seed=7, **options)
    spec, random = environments.make_spec(environment), np.random.default_rng(7)
    played = episodes(
        environment,
        count,
        lambda seen: jax.tree.map(
            lambda part: _draw(random, part, action_masks.find(seen)), spec.actions
        ),
    )
    return of_episodes(spec.observations, spec.actions, played, "a player who draws")


def _draw(random, part, mask=None):
    """An action within a spec, uniformly of those that a mask allows."""
    if mask is not None:
        return action_masks.draw(mask[None], part, random)[0]
    if isinstance(part, specs.DiscreteArray):
        return part.dtype.type(random.integers(part.num_values))
    if part.dtype.kind == "i":
        low, high = part.minimum, part.maximum
        return random.integers(low, high, part.shape, endpoint=True).astype(part.dtype)
    return random.uniform(part.minimum, part.maximum, part.shape).astype(part.dtype)

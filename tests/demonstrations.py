"""What a perfect player of `fake/match` does, as data."""

import numpy as np

from troupe import environments
from troupe.agents.replay.offline import Episode, of_episodes


def episodes(environment, count):
    """Whole ones; of one environment."""
    places = np.linspace(-1, 1, environment.observation_spec().shape[0], dtype=np.float32)
    continuous = environment.action_spec().shape
    for _ in range(count):
        timestep = environment.reset()
        seen, acted, outcomes = [timestep.observation], [], []
        while not timestep.last():
            shown = np.argmax(timestep.observation)
            action = places[[shown]] if continuous else np.int32(shown)
            timestep = environment.step(action)
            seen.append(timestep.observation)
            acted.append(action)
            outcomes.append((timestep.reward, timestep.discount))
        reward, discount = np.array(outcomes, np.float32).T
        yield Episode(np.stack(seen), np.stack(acted), reward, discount)


def match(count=40, **options):
    """A dataset of so many episodes, all of them perfect."""
    environment = environments.make("fake/match", seed=7, **options)
    spec = environments.make_spec(environment)
    played = episodes(environment, count)
    return of_episodes(spec.observations, spec.actions, played, "a perfect player")

"""Environments with a mistake in them."""

import dataclasses

STEPS = 50


class Mistaken:
    """A vector of environments whose `STEPS`-th step calls `mistake`, which raises."""

    def __init__(self, inner, mistake):
        self._inner, self._left, self._mistake = inner, STEPS, mistake

    def step(self, actions):
        self._left -= 1
        if self._left == 0:
            self._mistake()
        return self._inner.step(actions)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._inner.close()

    def __getattr__(self, name):
        return getattr(self._inner, name)


def mistaken(recipe, mistake):
    """The experiment of a recipe, with the mistake in training alone."""

    def factory(*, evaluation, **arguments):
        inner = recipe.make_environment(evaluation=evaluation, **arguments)
        return inner if evaluation else Mistaken(inner, mistake)

    return dataclasses.replace(recipe.experiment(), environment_factory=factory)

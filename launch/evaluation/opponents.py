"""The opponents that evaluations of games have besides those that come with the environment."""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ... import environments
from ..errors import RequestError
from ..files.directory import RunDirectory
from .loading import learned

if TYPE_CHECKING:
    from ...agents.interfaces import ActorCore
    from ...environments import EnvironmentSpec
    from ...environments.functional.games import SelfPlay

Nest = Any


def is_game(environment: Any) -> bool:
    """True of a vector of games in which somebody plays against the learner."""
    functions = getattr(environment, "functions", None)
    return functions is not None and functions.against is not None


def self_play_of(environment: Any) -> SelfPlay | None:
    """Returns how a vector of games has a learner trained against itself; None: it has not."""
    found: SelfPlay | None = environment.functions.self_play if is_game(environment) else None
    return found


def oppose(environment: Any, policy: ActorCore, params: Nest) -> None:
    """Has a vector of games be played against a policy from its next reset on."""
    from ...agents.acting import opponents

    environment.face(functools.partial(opponents.facing, environment.functions, policy), params)


def win_rate(returns: Sequence[float]) -> float:
    """Returns the share of episodes whose return is above 0: draws are none."""
    return sum(one > 0 for one in returns) / len(returns)


class OlderSelf:
    """A policy of an earlier evaluation, at a quarter to half of the evaluations so far.

    Only two are held: those of the newest evaluations whose number is a power of two.
    """

    def __init__(self) -> None:
        self._held: list[tuple[int, Nest]] = []

    def of(self, number: int) -> Nest | None:
        """Returns the parameters that evaluation `number`, from 1 on, plays against; None: none."""
        older = [params for held, params in self._held if 2 * held <= number]
        return older[-1] if older else None

    def hold(self, number: int, params: Nest) -> None:
        """Takes the parameters that evaluation `number` has judged."""
        if number & (number - 1) == 0:
            self._held = [*self._held[-1:], (number, params)]


def face_in_training(environment: Any, warn: Callable[[str], None] = lambda line: None) -> None:
    """Has a vector of games be played against the run that its options name, if they name one.

    Raises:
      RequestError: if there is no such run, or its policy cannot play.
    """
    if is_game(environment) and (run := environment.functions.opponent_run) is not None:
        face_run(environment, environments.make_spec(environment), run, warn)


def face_run(
    environment: Any,
    spec: EnvironmentSpec,
    run: str | os.PathLike[str],
    warn: Callable[[str], None],
) -> None:
    """Has a vector of games be played against a policy of a run, which draws its moves.

    Args:
      environment: the vector.
      spec: of one of its environments.
      run: directory of the run, of which the newest policy plays, or its `best`, of which the best
        by the run's evaluations does; its agent may be another.
      warn: called with a line for every damaged checkpoint.

    Raises:
      RequestError: if nobody plays against the learner, or the run's policy cannot.
    """
    where = os.fspath(run)
    if not is_game(environment):
        raise RequestError(
            f"--opponent {where} is of games of two players, as jax:pgx/connect_four; nobody plays "
            "against the learner here."
        )
    directory = RunDirectory(pathlib.Path(run).parent)
    is_best = pathlib.Path(run) == directory.best and directory.config.exists()
    found = learned(directory.path if is_best else run, "best" if is_best else "newest", None, warn)
    builder = found.experiment.builder
    try:
        networks = found.experiment.make_networks(spec)
        (params,) = found.source(spec, networks).get_variables()
    except ValueError as error:
        raise RequestError(f"the policy of {where} cannot play here: {error}") from error
    oppose(environment, builder.make_policy(networks, spec), params)

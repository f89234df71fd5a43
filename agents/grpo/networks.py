"""The language model of GRPO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ...environments.specs import AnswerArray, EnvironmentSpec, describe
from .. import action_spaces
from ..generation import masks
from ..generation.model import make_decoder
from ..networks.decoder import Decoder
from .config import GRPOConfig

_READ = ("prompt", "solution", "scores")


class GRPONetworks(NamedTuple):
    """A language model and what it answers."""

    decoder: Decoder
    answer: AnswerArray
    """The spec of actions, int32 [G, T]."""


def make_networks(spec: EnvironmentSpec, config: GRPOConfig) -> GRPONetworks:
    """A decoder of the config's sizes, whose vocabulary is the environment's.

    Raises:
      ValueError: if the environment asks for no answers, or its tokenizer has more tokens than the
        decoder.
    """
    answer: AnswerArray = spec.actions
    if action_spaces.kinds_of(answer) != {action_spaces.ANSWERS}:
        raise action_spaces.refusal("grpo", answer)
    seen = spec.observations
    if not (isinstance(seen, Mapping) and {*_READ} <= {*seen}):
        raise ValueError(
            f"grpo reads {', '.join(_READ)} of observations, as environments of text show them; "
            f"this environment's are {describe(seen)}."
        )
    decoder = make_decoder(config, answer.vocabulary)
    masks.possible(answer, decoder.config.vocabulary)
    return GRPONetworks(decoder, answer)

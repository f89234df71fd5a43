"""The language model of GRPO."""

from __future__ import annotations

from typing import NamedTuple

from ...environments.specs import AnswerArray, EnvironmentSpec
from ..generation.model import make_decoder, require_answers
from ..networks.decoder import Decoder
from .config import GRPOConfig


class GRPONetworks(NamedTuple):
    """A language model and what it answers."""

    decoder: Decoder
    answer: AnswerArray
    """The spec of actions, int32 [G, T]."""


def make_networks(spec: EnvironmentSpec, config: GRPOConfig) -> GRPONetworks:
    """A decoder of the config's sizes, whose vocabulary holds the environment's.

    Raises:
      ValueError: if the environment asks for no answers, the decoder cannot be made, or texts do
        not fit it.
    """
    prompt_length, answer = require_answers("grpo", spec)
    return GRPONetworks(make_decoder(config, answer, prompt_length), answer)

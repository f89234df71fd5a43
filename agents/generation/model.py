"""The language model of an agent, by fields of its config."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import jax

from ...environments.specs import AnswerArray, EnvironmentSpec, describe
from .. import action_spaces
from ..bounds import AllBounds
from ..configs import Config
from ..learning.learner import SGDLearner
from ..networks.checkpoint_folder import read, read_config
from ..networks.decoder import Decoder, DecoderConfig
from ..networks.decoder_presets import preset
from . import masks

_READ = ("prompt", "solution", "scores")


@dataclasses.dataclass(frozen=True)
class DecoderFields(Config):
    """Of the language model: its own sizes, those of a preset, or a folder of weights."""

    weights: str | None = None
    """Folder of config.json and safetensors, as transformers writes them, whose sizes and weights
    learning begins with; None: random weights."""
    preset: str | None = None
    """Name of the sizes of a published model, such as llama-8b, in place of those below; None:
    those below."""
    width: int = 128
    """Features of a token between layers."""
    num_layers: int = 4
    """Layers of the decoder."""
    num_heads: int = 4
    """Heads of queries; divides width."""
    num_kv_heads: int | None = None
    """Heads of keys and values, which divide num_heads; None: as many."""
    hidden: int | None = None
    """Features inside an MLP; None: 4 width."""
    tied: bool = True
    """Logits are products with the embedding, instead of with a matrix of their own."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of activations and of the cache; parameters, logits and optimizer stay float32."""
    rematerialize: bool = False
    """The backward pass computes every layer anew, which takes time and saves memory."""

    bounds: ClassVar[AllBounds] = {
        "width": (2, 65_536),
        "num_layers": (1, 1_000),
        "num_heads": (1, 1_024),
        "num_kv_heads": (1, 1_024),
        "hidden": (1, 1_000_000),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights is not None and self.preset is not None:
            raise ValueError(
                f"weights is {self.weights!r} and preset is {self.preset!r}; a folder has sizes of "
                "its own: give one of the two."
            )
        if self.width % (2 * self.num_heads):
            raise ValueError(
                f"width is {self.width} and num_heads is {self.num_heads}; width must be a "
                "multiple of 2 num_heads, as positions turn pairs of features of a head."
            )
        if self.num_heads % (self.num_kv_heads or self.num_heads):
            raise ValueError(
                f"num_heads is {self.num_heads} and num_kv_heads is {self.num_kv_heads}; "
                "num_kv_heads must divide num_heads."
            )


def require_answers(agent: str, spec: EnvironmentSpec) -> tuple[int, AnswerArray]:
    """The longest prompt of an environment, and its spec of answers.

    Raises:
      ValueError: if it asks for no answers, or shows no prompts.
    """
    answer, seen = spec.actions, spec.observations
    if action_spaces.kinds_of(answer) != {action_spaces.ANSWERS}:
        raise action_spaces.refusal(agent, answer)
    if not (isinstance(seen, Mapping) and {*_READ} <= {*seen}):
        raise ValueError(
            f"{agent} reads {', '.join(_READ)} of observations, as environments of text show them; "
            f"this environment's are {describe(seen)}."
        )
    return seen["prompt"].shape[-1], answer


def make_decoder(config: DecoderFields, answer: AnswerArray, prompt_length: int) -> Decoder:
    """A decoder for answers of an environment. Of a preset or a folder it may have more tokens than
    the tokenizer, which never come.

    Args:
      config: of the agent.
      answer: the spec of answers, [G, T].
      prompt_length: tokens of the longest prompt.

    Raises:
      ValueError: if there is no such preset or no folder of weights that can be read, the tokenizer
        has tokens that the decoder has not, or texts are longer than it was trained for.
    """
    sizes = _sizes(config, answer.vocabulary)
    masks.possible(answer, sizes.vocabulary)
    needed = prompt_length + answer.shape[-1]
    if sizes.context is not None and needed > sizes.context:
        raise ValueError(
            f"prompts of {prompt_length} tokens and answers of {answer.shape[-1]} do not fit into "
            f"the decoder's context of {sizes.context}; take shorter ones (--env.prompt_length, "
            "--env.answer_length)."
        )
    return Decoder(sizes)


def _sizes(config: DecoderFields, vocabulary: int) -> DecoderConfig:
    given: dict[str, Any] = {"compute_dtype": config.dtype, "rematerialize": config.rematerialize}
    if config.weights is not None:
        with _named(config.weights):
            return dataclasses.replace(read_config(config.weights), **given)
    if config.preset is not None:
        own = preset(config.preset).vocabulary
        return preset(config.preset, vocabulary=max(own, vocabulary), **given)
    return DecoderConfig(
        vocabulary=vocabulary,
        width=config.width,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads or config.num_heads,
        head_width=config.width // config.num_heads,
        hidden=config.hidden or 4 * config.width,
        tied=config.tied,
        **given,
    )


def begin_with(learner: SGDLearner, folder: str, names: tuple[str, ...]) -> None:
    """Has a learner begin with the weights of a folder, read where its parameters lie.

    Args:
      learner: before its first step.
      folder: of weights.
      names: fields of its state that are parameters of the decoder.

    Raises:
      ValueError: if the folder lacks a file or a tensor, or one of them is damaged.
    """
    saved, like = learner.live_state(), learner.saved_shapes["state"]
    for name in names:
        shardings = jax.tree.map(lambda x: x.sharding, getattr(like, name))
        with _named(folder):
            params = read(folder, shardings if jax.tree.leaves(shardings) else None, "float32")
        saved["state"] = saved["state"]._replace(**{name: params})
    learner.restore(saved)


@contextlib.contextmanager
def _named(folder: str) -> Iterator[None]:
    """Raises what is wrong with a folder as a ValueError that names it."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise ValueError(f"weights {folder} cannot be read: {error}") from error

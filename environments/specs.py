"""Descriptions of what an environment takes and gives, as `dm_env.specs`.

The letters of the shapes: N environments in a vector, the rest as in the environment's own spec.
A nest is an array, or a dict or tuple of nests.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import tree
from dm_env import StepType, specs

from .action_masks import check_spec, find
from .errors import EnvironmentFault, InvalidOptionError, UnsupportedSpaceError

Array = specs.Array
BoundedArray = specs.BoundedArray
DiscreteArray = specs.DiscreteArray

# A nest of arrays, or of specs: recursive types are beyond what dm_env's untyped classes can say.
Nest = Any


class EnvironmentSpec(NamedTuple):
    """The four specs of one environment, with the field names of `acme.specs.EnvironmentSpec`."""

    observations: Nest
    actions: Nest
    rewards: Nest
    discounts: Nest

    @property
    def action_mask(self) -> Nest:
        """The spec of the observation's mask of legal actions; None: every action always is."""
        return find(self.observations)


class HasSpecs(Protocol):
    """Anything with the four spec methods: a `dm_env.Environment` or a `Vector`."""

    def observation_spec(self) -> Nest: ...

    def action_spec(self) -> Nest: ...

    def reward_spec(self) -> Nest: ...

    def discount_spec(self) -> Nest: ...


class Specified:
    """The four spec methods of what keeps its specs in `_spec`."""

    _spec: EnvironmentSpec

    def observation_spec(self) -> Nest:
        return self._spec.observations

    def action_spec(self) -> Nest:
        return self._spec.actions

    def reward_spec(self) -> Nest:
        return self._spec.rewards

    def discount_spec(self) -> Nest:
        return self._spec.discounts


def make_spec(environment: HasSpecs) -> EnvironmentSpec:
    """The specs of one environment; for a `Vector`, of each of its environments.

    Networks and replays are made from these, so that they are the same for one environment and
    for a vector of them: the leading dimension N is never part of a spec.

    Raises:
      UnsupportedSpaceError: if observations hold a mask of actions that cannot be masked.
    """
    spec = EnvironmentSpec(
        observations=environment.observation_spec(),
        actions=environment.action_spec(),
        rewards=environment.reward_spec(),
        discounts=environment.discount_spec(),
    )
    check_spec(spec.observations, spec.actions)
    return spec


def equal(left: Nest, right: Nest) -> bool:
    """True if two nests of specs describe the same values."""
    try:
        tree.assert_same_structure(left, right)
    except (TypeError, ValueError):
        return False
    pairs = zip(tree.flatten(left), tree.flatten(right), strict=True)
    return all(a == b and type(a) is type(b) for a, b in pairs)


def waiting(step_type: Any, discount: Any) -> np.ndarray:
    """Returns which streams of a vector wait, bool [N]: they stand at FIRST with a discount of 0.

    Their environment goes on without them: their action is ignored and FIRST follows again. None of
    it is experience.

    Args:
      step_type: [N].
      discount: [N].
    """
    return (np.asarray(step_type) == StepType.FIRST) & (np.asarray(discount) == 0.0)


class StackedArray(specs.BoundedArray):  # type: ignore[misc]
    """The last `stack` frames of an episode, along `axis`, the newest at the highest index.

    With frames f_0, f_1, ... of one episode, index k of observation t is
    f_max(0, t - stack + 1 + k): at the start of an episode the first frame is repeated. A replay
    may therefore keep each frame once and rebuild the stack, at a cost of 1/stack of the memory.

    Attributes:
      stack: how many frames, at least 1; the size of dimension `axis` of `shape`.
      axis: the dimension of the stack, counted from the end (-1 is the last).
      padding: "reset": what stands before the first frame of an episode is that frame itself.
    """

    __slots__ = ("_axis", "_stack")
    __hash__ = None  # type: ignore[assignment]
    padding = "reset"

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        minimum: Any,
        maximum: Any,
        stack: int,
        axis: int = -1,
        name: str | None = None,
    ) -> None:
        """Makes the spec of the stacked array (`shape` includes the stack).

        Raises:
          InvalidOptionError: if dimension `axis` of `shape` does not exist or is not `stack`.
        """
        super().__init__(shape, dtype, minimum, maximum, name)
        if not -len(self.shape) <= axis < len(self.shape) or stack < 1:
            raise InvalidOptionError(
                f"a stack of {stack} along axis {axis} does not fit the shape {self.shape}"
            )
        self._axis = axis if axis < 0 else axis - len(self.shape)
        if self.shape[self._axis] != stack:
            raise InvalidOptionError(
                f"dimension {axis} of the shape {self.shape} must be the stack of {stack}"
            )
        self._stack = stack

    @property
    def stack(self) -> int:
        return self._stack

    @property
    def axis(self) -> int:
        return self._axis

    @property
    def frame(self) -> specs.Array:
        """The spec of a single frame: this one's shape without the stack's dimension.

        Bounds that differ from frame to frame are not kept: the frame has the widest.
        """
        shape = list(self.shape)
        del shape[self._axis]
        return specs.BoundedArray(
            shape, self.dtype, self.minimum.min(), self.maximum.max(), self.name
        )

    def __repr__(self) -> str:
        return (
            f"StackedArray(shape={self.shape}, dtype={self.dtype!r}, name={self.name!r}, "
            f"minimum={self.minimum}, maximum={self.maximum}, stack={self.stack}, axis={self.axis})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StackedArray):
            return False
        return bool(super().__eq__(other) and (self.stack, self.axis) == (other.stack, other.axis))

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = self._get_constructor_kwargs()
        return StackedArray, tuple(arguments.values())


class AnswerArray(specs.BoundedArray):  # type: ignore[misc]
    """A group of answers to one prompt, each a row of tokens: int32 [G, T] in [0, V).

    An answer is what stands before its first `end`; behind it every token is `pad`.

    Attributes:
      vocabulary: V, the number of tokens.
      pad: the token that fills rows; policies never choose it. It may be `end`.
      end: the token that ends an answer; one of T tokens without it is whole, too.
      grammar: what may come, as a finite automaton, int32 [S, V]: the next state, -1 where a token
        may not come; state 0 begins. None: any token but `pad` may come.
      tokenizer: has `decode(ids) -> str`, for who writes samples of answers down.
    """

    __slots__ = ("_end", "_grammar", "_pad", "_tokenizer", "_vocabulary")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        shape: tuple[int, int],
        vocabulary: int,
        pad: int,
        end: int,
        grammar: np.ndarray | None = None,
        tokenizer: Any = None,
        name: str | None = None,
    ) -> None:
        """Makes the spec of G answers of at most T tokens; `shape` is [G, T].

        Raises:
          InvalidOptionError: if `pad`, `end` or the grammar are not of the vocabulary.
        """
        super().__init__(shape, np.int32, 0, vocabulary - 1, name)
        if not (0 <= pad < vocabulary and 0 <= end < vocabulary):
            raise InvalidOptionError(
                f"pad and end must be tokens of {vocabulary}, got {pad} and {end}"
            )
        self._vocabulary, self._pad, self._end = vocabulary, pad, end
        self._tokenizer = tokenizer
        self._grammar = None if grammar is None else _check_grammar(grammar, vocabulary)

    @property
    def vocabulary(self) -> int:
        return self._vocabulary

    @property
    def pad(self) -> int:
        return self._pad

    @property
    def end(self) -> int:
        return self._end

    @property
    def grammar(self) -> np.ndarray | None:
        return self._grammar

    @property
    def tokenizer(self) -> Any:
        return self._tokenizer

    def __repr__(self) -> str:
        states = None if self.grammar is None else len(self.grammar)
        return (
            f"AnswerArray(shape={self.shape}, vocabulary={self.vocabulary}, pad={self.pad}, "
            f"end={self.end}, states of the grammar={states}, name={self.name!r})"
        )

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, AnswerArray)
            and bool(super().__eq__(other))
            and (self.pad, self.end, self.tokenizer) == (other.pad, other.end, other.tokenizer)
            and (self.grammar is None) == (other.grammar is None)
            and np.array_equal(self.grammar, other.grammar)  # type: ignore[arg-type]
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return AnswerArray, tuple(self._get_constructor_kwargs().values())


def _check_grammar(grammar: Any, vocabulary: int) -> np.ndarray:
    """Returns a grammar as an array that cannot be written to."""
    table = np.array(grammar)
    if table.ndim != 2 or table.shape[1] != vocabulary or table.dtype.kind not in "iu":
        raise InvalidOptionError(
            f"a grammar of {vocabulary} tokens is int32 [states, {vocabulary}], got "
            f"{table.dtype}{[*table.shape]}"
        )
    if not (table >= -1).all() or not (table < len(table)).all() or not len(table):
        raise InvalidOptionError(
            f"a grammar's entries are its {len(table)} states or -1, got {table.min()} to "
            f"{table.max()}"
        )
    table = table.astype(np.int32)
    table.setflags(write=False)
    return table


def reward_spec(limit: float | None = None) -> specs.Array:
    """A float32 reward; within +-`limit` where the environment clips it."""
    if limit is None:
        return specs.Array((), "float32", name="reward")
    return specs.BoundedArray((), "float32", -limit, limit, name="reward")


def discount_spec() -> specs.BoundedArray:
    """A float32 discount: 0 where an episode terminated, 1 everywhere else."""
    return specs.BoundedArray((), "float32", 0.0, 1.0, name="discount")


def require_real(nest: Nest, name: str) -> None:
    """Refuses complex numbers, which a cast to a real dtype would rob of their imaginary part.

    Args:
      nest: of arrays or of specs.
      name: what the message begins with.

    Raises:
      UnsupportedSpaceError: if a leaf is of complex numbers.
    """
    for leaf in tree.flatten(nest):
        dtype = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
        if dtype.kind == "c":
            raise UnsupportedSpaceError(
                f"{name}: agents take no complex numbers, got {dtype}{[*leaf.shape]}; give the "
                "real and imaginary parts as numbers of their own"
            )


def check_shapes(value: Nest, spec: Nest, name: str) -> None:
    """Compares the structure and the shapes of a nest with those of its spec.

    Raises:
      EnvironmentFault: if they differ; the message begins with `name`.
    """
    if isinstance(spec, dict):
        if not isinstance(value, dict) or value.keys() != spec.keys():
            raise EnvironmentFault(f"{name}: expected a dict of {sorted(spec)}")
        for key, part in spec.items():
            check_shapes(value[key], part, name)
    elif isinstance(spec, tuple):
        if not isinstance(value, tuple) or len(value) != len(spec):
            raise EnvironmentFault(f"{name}: expected a tuple of {len(spec)}")
        for item, part in zip(value, spec, strict=True):
            check_shapes(item, part, name)
    elif value.shape != spec.shape:
        raise EnvironmentFault(
            f"{name}: {spec.name} has shape {value.shape} where its space declares {spec.shape}"
        )


def describe(spec: Nest) -> str:
    """One line about a nest of specs, for messages."""
    if isinstance(spec, specs.DiscreteArray):
        return f"one of {spec.num_values}"
    if isinstance(spec, AnswerArray):
        answers, length = spec.shape
        return f"{answers} answers of up to {length} tokens among {spec.vocabulary}"
    if isinstance(spec, specs.Array):
        kind = "bounded " if isinstance(spec, specs.BoundedArray) else ""
        return f"{kind}{spec.dtype}{list(spec.shape)}"
    leaves = ", ".join(describe(leaf) for leaf in tree.flatten(spec))
    return f"a {type(spec).__name__} of ({leaves})"

"""A task of text as a `dm_env`: one prompt and a group of answers to it are one step.

Letters: G answers of a group, P tokens of a prompt, T tokens of an answer, V of the vocabulary.
"""

from __future__ import annotations

from typing import Any

import dm_env
import numpy as np

from .. import options, specs
from ..adapter import Adapter, show
from ..errors import EnvironmentFault, InvalidActionError, InvalidOptionError
from ..seeding import check_seed
from .tasks import Task, require_task
from .tokenizers import Tokenizer
from .verifiers import Verifier

MOST_ANSWERS = 1 << 16
MOST_TOKENS = 1 << 20
_MOST_LONG = 1_000
"""Prompts in a row that do not fit before it is an error."""


class TextEnvironment(Adapter):
    """Shows prompts, takes G answers to each at once, and rewards their mean score.

    An episode is one step. Its observations are

    - `prompt`, int32 [P]: padded on the left with `pad`;
    - `solution`, int32 [T]: ended by `end` and padded on the right; all `pad` where the task has
      none;
    - `scores`, float32 [G]: of the answers just given; 0 at FIRST.

    At LAST, where nothing is to be answered, the first two are all `pad`. Of an answer the tokens
    up to its first `end` count, or all where there is none; `pad` stands for nothing. Equal answers
    are scored once.

    Prompts that do not fit into P tokens, or whose solution does not into T, are left out, and so
    are those with a character that the tokenizer has not.
    """

    def __init__(
        self,
        task: Task,
        tokenizer: Tokenizer,
        *,
        seed: int,
        prompt_length: int,
        answer_length: int,
        answers: int = 8,
        held_out: bool = False,
        grammar: np.ndarray | None = None,
        verifier: Verifier | None = None,
        reward_clip: float | None = None,
        name: str | None = None,
    ) -> None:
        """Makes the environment of a task.

        Args:
          task: prompts and scores.
          tokenizer: of prompts and answers.
          seed: at least 0; of the order of prompts.
          prompt_length: P.
          answer_length: T.
          answers: G.
          held_out: whether prompts are those of evaluations.
          grammar: of `AnswerArray`.
          verifier: what scores by; None: the task's `score`, in this process and without a limit of
            time.
          reward_clip: the mean of scores is clipped to +- this; None leaves it as it is.
          name: what errors call the environment; None: the task's class.

        Raises:
          InvalidOptionError: if an argument has a value that it cannot have.
        """
        name = name or type(task).__name__
        require_task(task, name)
        g = options.integer("answers", answers, 1, MOST_ANSWERS)
        p = options.integer("prompt_length", prompt_length, 1, MOST_TOKENS)
        t = options.integer("answer_length", answer_length, 1, MOST_TOKENS)
        options.choice("held_out", held_out, (True, False))
        action = specs.AnswerArray(
            (g, t),
            tokenizer.size,
            pad=tokenizer.pad,
            end=tokenizer.end,
            grammar=grammar,
            tokenizer=tokenizer,
            name="answers",
        )
        top = tokenizer.size - 1
        observation = {
            "prompt": specs.BoundedArray((p,), np.int32, 0, top, "prompt"),
            "solution": specs.BoundedArray((t,), np.int32, 0, top, "solution"),
            "scores": specs.Array((g,), np.float32, "scores"),
        }
        super().__init__(task, name, reward_clip, observation, action, self._check)
        self._task, self._tokenizer = task, tokenizer
        self._verifier = Verifier(task, name) if verifier is None else verifier
        self._solution_of = getattr(task, "solution", None)
        self._prompts = task.prompts(check_seed(seed), held_out)
        self._no_scores = np.zeros(g, np.float32)
        self._nothing = {
            "prompt": np.full(p, tokenizer.pad, np.int32),
            "solution": np.full(t, tokenizer.pad, np.int32),
        }
        self._prompt = ""
        self._shown: dict[str, np.ndarray] | None = None

    @property
    def unwrapped(self) -> Task:
        """The task."""
        return self._task

    def reset(self) -> dm_env.TimeStep:
        self._verifier.begin()
        for _ in range(_MOST_LONG):
            prompt = self._draw()
            if self._fits(prompt):
                assert self._shown is not None
                return dm_env.restart({**self._shown, "scores": self._no_scores})
        spec = self._spec.observations
        p, t = spec["prompt"].shape[0], spec["solution"].shape[0]
        raise EnvironmentFault(
            f"{self._name}: none of {_MOST_LONG:,} prompts fits into a prompt_length of {p} and an "
            f"answer_length of {t}; the last is {show(prompt)}"
        )

    def step(self, action: Any) -> dm_env.TimeStep:
        """Scores the answers to the prompt, or shows the next where they have been.

        Raises:
          InvalidActionError: if the action does not fit the action spec.
          InvalidRewardError: if a score is not a finite number, or too many cannot be computed.
        """
        if self._shown is None:
            return self.reset()
        texts = [self._tokenizer.decode(answer) for answer in self._take(action).tolist()]
        asked = [*dict.fromkeys(texts)]
        known = dict(zip(asked, self._verifier.score(self._prompt, asked), strict=True))
        scores = np.array([known[text] for text in texts], np.float32)
        observation = {**self._nothing, "scores": scores}
        self._shown = None
        self.episode_info = {
            "best_score": float(scores.max()),
            "different_answers": len(known),
            "solved": float(np.mean(scores >= 1.0)),
        }
        self.episode_text = f"{self._prompt!r} {texts[0]!r} {scores[0]:g}"
        reward = self._give(scores.mean())
        return dm_env.TimeStep(dm_env.StepType.LAST, reward, np.float32(0.0), observation)

    def close(self) -> None:
        """Ends the process of the verifier, where it has one."""
        self._verifier.close()

    def _draw(self) -> str:
        """Returns the next prompt."""
        try:
            prompt = next(self._prompts, None)
        except EnvironmentFault as fault:
            raise type(fault)(f"{self._name}: {fault}") from None
        except Exception as error:  # It may have mistakes of any kind.
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise EnvironmentFault(f"{self._name}: prompts raised {reason}") from error
        if not isinstance(prompt, str):
            raise EnvironmentFault(
                f"{self._name}: prompts yielded {show(prompt)}; it must yield texts without end"
            )
        return prompt

    def _fits(self, prompt: str) -> bool:
        """Shows a prompt and its solution, where they are short enough."""
        shown, solution = (nothing.copy() for nothing in self._nothing.values())
        try:
            tokens = self._tokenizer.encode(prompt)
            solved = self._solve(prompt)
        except InvalidOptionError:  # Of a character that the samples did not have.
            return False
        if len(tokens) > len(shown) or len(solved) > len(solution):
            return False
        shown[len(shown) - len(tokens) :] = tokens
        solution[: len(solved)] = solved
        self._prompt = prompt
        self._shown = {"prompt": shown, "solution": solution}
        return True

    def _solve(self, prompt: str) -> list[int]:
        """Returns the tokens of the solution, ended; none where there is no solution."""
        text = None if self._solution_of is None else self._solution_of(prompt)
        return [] if text is None else [*self._tokenizer.encode(text), self._tokenizer.end]

    def _check(self, action: Any) -> np.ndarray:
        """Returns answers as an array of integers."""
        spec, answers = self._spec.actions, np.asarray(action)
        if answers.shape != spec.shape or answers.dtype.kind not in "iu":
            raise InvalidActionError(
                f"answers must be int32 {[*spec.shape]}, got {answers.dtype}{[*answers.shape]}"
            )
        if answers.min() < 0 or answers.max() >= spec.vocabulary:
            raise InvalidActionError(
                f"answers must be of tokens from 0 to {spec.vocabulary - 1}, got "
                f"{answers.min()} to {answers.max()}"
            )
        return answers

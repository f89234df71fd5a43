"""The parts of a compiled run as the parts of any other: views of the one state of its program."""

from __future__ import annotations

import collections
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ...agents.programs.whole_loop import Acting, LoopState, WholeLoop
from ...agents.replay.device import DeviceReplay
from ...agents.replay.items import ReplaySpec
from ...agents.snapshots import check, from_host, to_host, typed, word_shapes, words_of
from ..signals import Stop

Nest = Any
_WRAP = 1 << 32
_BLOCK_SECONDS = 0.1
"""Of one call of the program, after which signals are looked at."""


class RunningProgram:
    """The state of a program, which every call of it replaces.

    Attributes:
      loop: the program.
      state: of it.
    """

    def __init__(self, loop: WholeLoop, state: LoopState):
        self.loop, self.state = loop, state

    @property
    def acting(self) -> Acting:
        return self.state.acting

    def set_acting(self, **fields: Any) -> None:
        """Replaces fields of what acting changes."""
        self.state = self.state._replace(acting=self.state.acting._replace(**fields))


class CompiledLearner:
    """The learning in a program, as a `ManagedLearner` that steps with it alone."""

    def __init__(self, running: RunningProgram, names: Sequence[str]):
        """Takes the program's state, and the names of the variables of its update."""
        self._running = running
        self.variable_names = tuple(sorted(names))
        self._restored = 0

    @property
    def steps(self) -> int:
        return int(self._running.state.learning.steps)

    @property
    def version(self) -> int:
        return self.steps + self._restored

    def get_variables(self, names: Sequence[str] = ("policy",)) -> list[Nest]:
        unknown = [name for name in names if name not in self.variable_names]
        if unknown:
            raise KeyError(f"No variables named {unknown}; there are {list(self.variable_names)}.")
        return self._running.loop.variables(self._running.state, tuple(names))

    def metrics(self) -> Mapping[str, float]:
        if not self.steps:
            return {}
        return {name: float(value) for name, value in self._running.state.learning.metrics.items()}

    @property
    def saved_shapes(self) -> Nest:
        shapes = jax.eval_shape(lambda: self._running.state.learning.state)
        return {"steps": jax.ShapeDtypeStruct((), np.int64), "state": word_shapes(shapes)}

    def live_state(self) -> Nest:
        state = jax.tree.map(words_of, self._running.state.learning.state)
        return {"steps": np.int64(self.steps), "state": state}

    def save(self) -> Nest:
        return to_host(self.live_state())

    def restore(self, state: Nest) -> None:
        """Takes back what a learner of this update saved, in whatever launch."""
        check(state["state"], self.saved_shapes["state"])
        learning = self._running.state.learning
        restored = jax.device_put(
            jax.tree.map(typed, state["state"], learning.state), self._running.loop.device
        )
        steps = jax.numpy.int32(int(state["steps"]))
        learning = learning._replace(state=restored, steps=steps)
        self._running.state = self._running.state._replace(learning=learning)
        self._restored += 1

    def assist(self, names: Sequence[str]) -> None:
        self.get_variables(names)

    def step(self) -> None:
        raise NotImplementedError("a compiled run's learner steps within its program")

    def run(self) -> None:
        raise NotImplementedError("a compiled run's learner steps within its program")


class CompiledActor:
    """The acting in a program: streams, policy and episodes so far, which checkpoints hold.

    Unlike other actors it goes on in the middle of episodes.
    """

    part = "streams"
    """Name in checkpoints: it is no other actor's state."""

    def __init__(self, running: RunningProgram, set_num_actions: Any):
        """Takes the program's state, and the policy's function of that name."""
        self.running, self._set_num_actions = running, set_num_actions

    def _kept(self) -> dict[str, Nest]:
        acting = self.running.acting._asdict()
        return {
            name: acting[name]
            for name in ("streams", "timestep", "policy", "returns", "lengths", "finished")
        }

    def save(self) -> Nest:
        return to_host(self._kept())

    def restore(self, state: Nest) -> None:
        """Takes back what `save` gave; the replay goes on with the present step of each episode."""
        loop = self.running.loop
        kept = jax.device_put(from_host(state, self._kept()), loop.device)
        self.running.set_acting(**kept)
        self.running.set_acting(replay=loop.empty_replay(kept["timestep"]))

    def set_num_actions(self, count: int) -> None:
        """Has schedules go on as if every stream had taken `count` actions."""
        change = jax.vmap(self._set_num_actions, in_axes=(0, None))
        policy = jax.jit(change)(self.running.acting.policy, np.int32(count))
        self.running.set_acting(policy=policy)


class CompiledReplay:
    """The replay in a program, as much of one as a run asks for."""

    part = "device_replay"
    """Name in checkpoints: its arrays are no other replay's."""

    def __init__(self, running: RunningProgram, functions: DeviceReplay):
        self._running, self._functions = running, functions
        self._inserted = self._sampled = 0

    @property
    def spec(self) -> ReplaySpec:
        return self._functions.spec

    @property
    def num_bytes(self) -> int:
        return self._functions.num_bytes

    def count(self) -> None:
        """Counts on from the device's 32 bits, which a run may wrap around; call it often."""
        items = self._running.acting.replay.items
        self._sampled += (int(items.sampled) - self._sampled) % _WRAP
        self._inserted = int(items.next)

    def __len__(self) -> int:
        return int(self._functions.size(self._running.acting.replay))

    @property
    def inserted(self) -> int:
        return self._inserted

    @property
    def sampled(self) -> int:
        return self._sampled

    @property
    def observed_samples_per_insert(self) -> float:
        since = self._inserted - self._functions.first_sampled_at
        return self._sampled / since if since > 0 else 0.0

    def save(self) -> Nest:
        return to_host(self._running.acting.replay)

    def restore(self, state: Nest) -> None:
        """Takes back what `save` gave."""
        replay = self._running.acting.replay
        kept = jax.device_put(from_host(state, replay), self._running.loop.device)
        self._running.set_acting(replay=kept)

    def close(self) -> None:
        """Nothing is to be closed here."""


class CompiledLoop:
    """Goes on with a program, as `local.loop.Loop` does with an environment and an actor.

    Attributes:
      finished: (return, length) of the newest hundred episodes, the newest last.
    """

    def __init__(
        self,
        running: RunningProgram,
        replay: CompiledReplay,
        key: jax.Array,
        *,
        actor_steps: int = 0,
        episodes: int = 0,
    ):
        """Goes on from the state of a program.

        Args:
          running: the state.
          replay: whose counts it keeps.
          key: of the draws from the replay.
          actor_steps: taken before.
          episodes: ended before.
        """
        self._running, self._replay, self._key = running, replay, key
        running.set_acting(
            actor_steps=jax.numpy.int32(actor_steps), episodes=jax.numpy.int32(episodes)
        )
        self.actor_steps, self.episodes = actor_steps, episodes
        self.finished: collections.deque[tuple[float, int]] = collections.deque(maxlen=100)
        self._turns = 1

    @property
    def steps(self) -> int:
        """Of the run's clock."""
        return self.actor_steps

    def advance(self, until: float, deadline: float, stop: Stop) -> None:
        """Goes on until the steps are done, the time is over or a stop is requested.

        Args:
          until: value of `steps` to reach; passed by at most N - 1.
          deadline: value of `time.perf_counter()`; at least one turn is taken.
          stop: looked at every tenth of a second.
        """
        running, clock = self._running, time.perf_counter
        most = int(min(until, 2**31 - 1))
        while self.actor_steps < until and stop.signal_number is None:
            began = clock()
            running.state = running.loop.advance(running.state, self._key, most, self._turns)
            self._read()
            now = clock()
            # The first call compiles, and says nothing of how long the next will take.
            pace = _BLOCK_SECONDS / max(now - began, 1e-4)
            self._turns = max(1, int(self._turns * min(max(pace, 0.5), 4.0)))
            if now >= deadline:
                break

    def _read(self) -> None:
        """Reads the counts and the episodes that have ended."""
        acting = self._running.acting
        before = self.episodes
        self.actor_steps, self.episodes = int(acting.actor_steps), int(acting.episodes)
        self._replay.count()
        if self.episodes > before:
            rows = np.asarray(acting.finished)
            for episode in range(max(before, self.episodes - len(rows)), self.episodes):
                total, length = rows[episode % len(rows)]
                self.finished.append((float(total), int(length)))

"""The policy as a program: its state stays where it is computed, on one device or over a mesh."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe import environments, partitioning
from troupe.agents import GenericActor, VariableClient, find_builder
from troupe.agents.acting import policies
from troupe.agents.acting.inference import InferenceServer
from troupe.agents.networks import recurrent, transformer
from troupe.agents.programs import policy as program
from troupe.agents.programs.placement import Partition
from troupe.agents.programs.policy import PolicyProgram
from troupe.agents.variables.client import MeshVariables

SPEC = environments.make_spec(environments.fakes.discrete(seed=0))
WIDTH = 512
"""Four matrices of 1 MB."""


class Source:
    version = 0

    def __init__(self, params):
        self.params = params

    def get_variables(self, names=("policy",)):
        return [self.params for _ in names]


class Unread:
    """An adder that nobody reads."""

    def add_first(self, timestep):
        pass

    def add(self, action, timestep, extras=()):
        pass


def half_core(size):
    """A memory of bfloat16 that becomes the output."""

    def step(params, x, memory):
        memory = (0.9 * memory + (x @ params).astype(jnp.bfloat16)).astype(jnp.bfloat16)
        return memory.astype(jnp.float32), memory

    choose = policies.epsilon_greedy(lambda params, values: values, 0.3)
    return policies.recurrent(step, jnp.zeros(size, jnp.bfloat16), choose)


def test_the_state_stays_in_its_own_dtypes():
    for size in (4, 4096):  # Packed, and by itself.
        actions = PolicyProgram(half_core(size), 3)
        actions.init(jax.random.split(jax.random.key(0), 3))
        params = np.random.default_rng(0).normal(size=(5, size)).astype(np.float32)
        actions(params, np.ones((3, 5), np.float32), np.ones(3, bool))
        held = sum(part.nbytes for part in actions._state)
        saved = actions.save()
        assert saved.memory.dtype == jnp.bfloat16
        assert held == sum(leaf.nbytes for leaf in jax.tree.leaves(saved))
        assert saved.memory.any()

"""A graph network: messages along edges, summed at their receivers (https://arxiv.org/abs/1806.01261)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from . import layers, optimizers
from .example import DATA_AND_MODEL, Example
from .training import initial_state, supervised


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the graphs and of the network.

    Attributes:
      graphs: graphs in a batch, laid end to end.
      nodes: nodes of each graph.
      edges: edges of each graph.
      features: features of a node and of an edge.
      hidden: features within each MLP.
      rounds: rounds of message passing.
      optimizer: "sgd" or "adam".
      clip: the global norm that gradients are clipped to, or None.
    """

    graphs: int = 8
    nodes: int = 3
    edges: int = 5
    features: int = 8
    hidden: int = 16
    rounds: int = 2
    optimizer: str = "adam"
    clip: float | None = None


def make(**sizes: Any) -> Example:
    """Regression of one number per graph."""
    config = Sizes(**sizes)
    optimizer = optimizers.make(config.optimizer, clip=config.clip)
    size, hidden = config.features, config.hidden
    num_nodes = config.graphs * config.nodes

    def params_init(key: jax.Array) -> layers.Params:
        keys = jax.random.split(key, 2 * config.rounds + 1)
        params = {"readout": layers.mlp_init(keys[-1], (size, hidden, 1))}
        for i in range(config.rounds):
            params[f"message_{i}"] = layers.mlp_init(keys[2 * i], (3 * size, hidden, size))
            params[f"node_{i}"] = layers.mlp_init(keys[2 * i + 1], (2 * size, hidden, size))
        return params

    def loss(params: layers.Params, batch: dict[str, jax.Array]) -> jax.Array:
        nodes, edges = batch["nodes"], batch["edges"]
        senders, receivers = batch["senders"], batch["receivers"]
        for i in range(config.rounds):
            inputs = jnp.concatenate([nodes[senders], nodes[receivers], edges], axis=-1)
            edges = edges + layers.mlp(params[f"message_{i}"], inputs)
            received = jax.ops.segment_sum(edges, receivers, num_nodes)
            inputs = jnp.concatenate([nodes, received], axis=-1)
            nodes = nodes + layers.mlp(params[f"node_{i}"], inputs)
        pooled = jax.ops.segment_sum(nodes, batch["graph"], config.graphs)
        predictions = layers.mlp(params["readout"], pooled)[:, 0]
        return jnp.mean(jnp.square(predictions - batch["target"]))

    def make_batch(key: jax.Array) -> dict[str, jax.Array]:
        keys = jax.random.split(key, 5)
        num_edges = config.graphs * config.edges
        first = jnp.repeat(jnp.arange(config.graphs) * config.nodes, config.edges)
        return {
            "nodes": jax.random.normal(keys[0], (num_nodes, size)),
            "edges": jax.random.normal(keys[1], (num_edges, size)),
            "senders": first + jax.random.randint(keys[2], (num_edges,), 0, config.nodes),
            "receivers": first + jax.random.randint(keys[3], (num_edges,), 0, config.nodes),
            "graph": jnp.repeat(jnp.arange(config.graphs), config.nodes),
            "target": jax.random.normal(keys[4], (config.graphs,)),
        }

    return Example(
        name="graph_net",
        update=supervised(loss, optimizer),
        init=initial_state(params_init, optimizer),
        make_batch=make_batch,
        schedules=DATA_AND_MODEL,
        config=config,
    )

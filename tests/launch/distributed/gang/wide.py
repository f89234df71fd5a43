"""Learners of recurrent agents of any size: what gradient steps from the same batches come to.

`python wide.py RANK SIZE ADDRESS:PORT OUT CASE`, where CASE is the JSON of a `Case`, is one rank of
a gang: it learns from its share, once under each layout, and writes what came out. Rank 0 ends when
its input does.
"""

import json
import os
import sys
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from troupe import partitioning as pt
from troupe.agents import SGDLearner, Update, examples
from troupe.agents.programs.placement import Partition
from troupe.agents.snapshots import to_host
from troupe.launch.distributed.gang import joining
from troupe.partitioning import models

MOST = 100_000
"""Numbers that are kept of an array, evenly spaced."""


class Case(NamedTuple):
    """An agent of some size, and where it learns."""

    agent: str
    sizes: dict[str, Any]
    layouts: list[tuple[str, str]]
    """Mesh and schedule of each."""
    steps: int
    fused: int
    """Gradient steps of one dispatch."""


def num_parameters(case):
    """Numbers in what an agent's networks learn."""
    params, *_ = examples.make(case.agent, **case.sizes).state_shapes  # They come first.
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def learn(case, layout=None, rank=0, size=1):
    """Takes all steps, on one device or under a layout.

    Returns:
      By path, some numbers of the state that they come to.
    """
    example = examples.make(case.agent, **case.sizes)
    state, _ = models.mid_training(example)

    def batch(number):
        sample = example.make_batch(jax.random.PRNGKey(number))

        def share(leaf):
            rows = len(leaf) // size
            return np.asarray(leaf)[rank * rows : (rank + 1) * rows]

        return jax.tree.map(share, sample)

    def dispatches():
        for first in range(0, case.steps + case.fused, case.fused):
            batches = [batch(first + i) for i in range(case.fused)]
            yield jax.tree.map(lambda *leaves: np.stack(leaves), *batches)

    update = Update(
        lambda key: example.init(jax.random.key_data(key)),
        example.update,
        lambda state: {"policy": state[0]},
    )
    partition = None
    if layout is not None:
        partition = Partition(pt.parse_mesh(layout[0]), pt.parse_schedule(layout[1]))
    learner = SGDLearner(
        update,
        dispatches(),
        jax.random.key(0),
        steps_per_dispatch=case.fused,
        partition=partition,
    )
    learner.restore({"steps": np.int64(0), "state": to_host(state)})
    learner.run(case.steps // case.fused)
    leaves, _ = jax.tree_util.tree_flatten_with_path(learner.save()["state"])
    return {jax.tree_util.keystr(path): _some(leaf) for path, leaf in leaves}


def _some(leaf):
    """Some numbers of an array, wherever it lies."""
    if isinstance(leaf, jax.Array):
        everywhere = NamedSharding(leaf.sharding.mesh, PartitionSpec())
        leaf = jax.jit(lambda x: x, out_shardings=everywhere)(leaf).addressable_data(0)
    flat = np.asarray(leaf).reshape(-1)
    return flat[:: max(1, len(flat) // MOST)]


def main(rank, size, address, out, case):
    joining.HEARTBEAT_SECONDS = 60  # Nothing is killed here, and compiling keeps a machine busy.
    joining.join(address, size, rank)
    case = Case(**json.loads(case))
    found = {}
    for number, layout in enumerate(case.layouts):
        for path, values in learn(case, layout, rank, size).items():
            found[f"{number}{path}"] = values
    np.savez(out, **found)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
    sys.stdout.flush()
    if sys.argv[1] == "0":
        sys.stdin.read()  # Without this process the others would end as failures.
    os._exit(0)  # jax would wait for the others.

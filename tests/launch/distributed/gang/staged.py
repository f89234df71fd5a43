"""One rank of a gang whose step is a pipeline, or a process without a mesh.

`python staged.py RANK SIZE PORT FOLDER MESH SCHEDULE` takes gradient steps of IMPALA from a state
that is drawn or, where FOLDER holds a checkpoint, from that one; it saves and says what it saw as
a line of JSON.
"""

import itertools
import json
import os
import pathlib
import sys

import jax
import numpy as np
from jax.experimental import multihost_utils

from troupe import partitioning
from troupe.agents import SGDLearner, Update, examples
from troupe.agents.programs.placement import Partition
from troupe.launch.distributed.gang import joining, protocol
from troupe.launch.files.checkpoints import Store, write_shards
from troupe.launch.files.frozen import Freezer

B, K = 8, 2
SIZES = {"num_envs": B, "batch_size": B, "rollout_length": 3, "adam_epsilon": 1e-3}


def make_learner(rank=0, size=1, mesh="", schedule=""):
    made = examples.make("impala", **SIZES)
    rows = slice(rank * B // size, (rank + 1) * B // size)

    def batches():
        for number in itertools.count():
            keys = jax.random.split(jax.random.key(number), K)
            batch = [made.make_batch(jax.random.key_data(key)) for key in keys]
            yield jax.tree.map(lambda *x: np.stack(x)[:, rows], *batch)

    partition = None
    if mesh:
        schedule = partitioning.parse_schedule(schedule)
        partition = Partition(partitioning.parse_mesh(mesh), schedule, device="h100")
    update = Update(
        lambda key: made.init(jax.random.key_data(key)),
        made.update,
        lambda state: {"policy": state.params},
    )
    return SGDLearner(
        update, batches(), jax.random.key(1), steps_per_dispatch=K, partition=partition
    )


def save(folder, rank, size, state):
    """What the roles do by words, by barriers."""

    def meet(what):
        if size > 1:
            multihost_utils.sync_global_devices(what)

    store = Store(folder)
    if rank == 0:

        def others(folder):
            meet("prepared")
            return lambda: meet("written")

        store.save({"learner": state}, {}, {}, others)
    else:
        meet("prepared")
        (writing,) = folder.glob(".writing-*")
        write_shards(writing, {"learner": state})
        meet("written")
    meet("named")


def main(rank, size, port, folder, mesh, schedule):
    if size > 1:
        joining.join(f"127.0.0.1:{port}", size, rank)
    learner = make_learner(rank, size, mesh, schedule)
    store = Store(folder)
    checkpoint = store.newest(lambda line: None)
    if checkpoint is not None:
        learner.restore(checkpoint.read("learner", like=learner.saved_shapes))
    learner.run(2)
    frozen = Freezer().freeze(learner.live_state())
    sums = protocol.sums(frozen)
    save(folder, rank, size, frozen)
    (policy,) = learner.get_variables(["policy"])
    norms = [float(np.linalg.norm(leaf)) for leaf in jax.tree.leaves(policy)]
    print(json.dumps({"norms": norms, "metrics": learner.metrics(), "sums": sums}), flush=True)


if __name__ == "__main__":
    rank, size, port, folder, mesh, schedule = sys.argv[1:]
    main(int(rank), int(size), port, pathlib.Path(folder), mesh, schedule)
    sys.stdin.read()  # Until all have said what they saw: without one the others would end.
    os._exit(0)  # jax would wait for the others.

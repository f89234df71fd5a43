"""One rank of a gang whose state is larger than any of its processes may be.

`python larger.py RANK SIZE PORT FOLDER WIDTH FOREVER` goes on from the newest checkpoint in FOLDER,
takes 20 gradient steps, publishes, saves, and says what it saw as a line of JSON. Where FOREVER is
1 it then steps and saves until it is killed. A SIZE of 0 is one process with one device.
"""

import itertools
import json
import os
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from troupe import environments, partitioning
from troupe.agents import find_builder
from troupe.agents.replay.items import Sample, SampleInfo, Transition
from troupe.agents.variables.version_board import write_version
from troupe.launch.distributed.gang import joining
from troupe.launch.experiment import Partition
from troupe.launch.files.checkpoints import Store, write_shards

B, K, STEPS = 8, 2, 20
SPEC = environments.make_spec(environments.fakes.discrete(seed=0))


def samples(rows):
    """Batches of `rows` rows, the same in every process."""
    random = np.random.default_rng(0)
    while True:
        shape = (K, rows)
        observations = random.normal(size=(2, *shape, 4)).astype(np.float32)
        number = np.ones(shape, np.float32)
        data = Transition(
            observation=observations[0],
            action=random.integers(0, 3, shape).astype(np.int32),
            reward=number,
            discount=number,
            next_observation=observations[1],
        )
        yield Sample(SampleInfo(np.zeros(shape, np.uint64), number, number), data)


def make_learner(width, mesh=None, schedule="megatron:model", processes=1):
    """A DQN of five layers, over a mesh or on one device."""
    dqn = find_builder("dqn")
    config = dqn.config_class(hidden_sizes=(width,) * 5, batch_size=B, steps_per_dispatch=K)
    builder, partition = dqn(config), None
    if mesh is not None:
        partition = Partition(partitioning.parse_mesh(mesh), partitioning.parse_schedule(schedule))
    return builder.make_learner(
        jax.random.key(1),
        builder.make_networks(SPEC),
        SPEC,
        samples(B // processes),
        partition=partition,
    )


def size_of(learner):
    """A number that says whether two states are the same."""
    total = jax.jit(lambda leaf: jnp.sum(jnp.abs(leaf.astype(jnp.float32))))
    return sum(float(np.asarray(total(leaf))) for leaf in jax.tree.leaves(learner.save()["state"]))


def peak():
    """Most bytes that this process ever held."""
    text = pathlib.Path("/proc/self/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) << 10


def save(store, learner, rank, size, number):
    """What the roles do by words, by barriers."""

    def meet(what):
        if size > 1:
            multihost_utils.sync_global_devices(f"{what}-{number}")

    if rank == 0:

        def others(folder):
            meet("prepared")
            return lambda: meet("written")

        store.save({"learner": learner.save()}, {"actor_steps": number}, {}, others)
    else:
        meet("prepared")
        (folder,) = store._folder.glob(".writing-*")
        write_shards(folder, {"learner": learner.save()})
        meet("written")
    meet("named")


def main(rank, size, port, folder, width, forever):
    if size > 1:
        joining.join(f"127.0.0.1:{port}", size, rank)
    store = Store(pathlib.Path(folder) / "checkpoints")
    mesh = f"model={jax.device_count()}" if size else None
    learner = make_learner(width, mesh, processes=max(size, 1))
    checkpoint = store.newest(lambda line: None)
    found = {"began": None}
    if checkpoint is not None:
        learner.restore(checkpoint.read("learner", like=learner.saved_shapes))
        found["began"] = size_of(learner)
    learner.run(STEPS // K)
    if rank == 0:
        (policy,) = learner.get_variables(["policy"])
        write_version(pathlib.Path(folder), 0, {"policy": policy})
        del policy
    else:
        learner.assist(["policy"])
    learner.run(1)
    found |= {"steps": learner.steps, "ended": size_of(learner)}
    save(store, learner, rank, size, 0)
    found["peak"] = peak()
    print(json.dumps(found), flush=True)
    for number in itertools.count(1) if forever else ():
        learner.step()
        save(store, learner, rank, size, number)


if __name__ == "__main__":
    rank, size, port, folder, width, forever = sys.argv[1:]
    main(int(rank), int(size), port, folder, int(width), forever == "1")
    sys.stdin.read()  # Until all have said what they saw: without one the others would end.
    os._exit(0)  # jax would wait for the others.

"""One rank of a gang, in a process of its own: it learns from its share and writes what came out.

`python rank.py RANK SIZE ADDRESS:PORT OUT`, as many at once as there are to be ranks; a size of 1
learns from the whole batches. Rank 0 ends when its input does.
"""

import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from troupe import environments, partitioning
from troupe.agents import SGDLearner, Update, UpdateOutput, find_builder
from troupe.agents.replay.items import Sample, SampleInfo, Transition
from troupe.launch.distributed.gang import joining
from troupe.launch.experiment import Partition

B, K, DISPATCHES = 8, 2, 3
SPEC = environments.make_spec(environments.fakes.discrete(seed=0))


def samples(rank, size):
    """This rank's rows of an endless stream of global batches [K, B, ...]."""
    random = np.random.default_rng(0)
    share = B // size
    while True:
        observations = random.normal(size=(2, K, B, 4)).astype(np.float32)
        data = Transition(
            observation=observations[0],
            action=random.integers(0, 3, (K, B)).astype(np.int32),
            reward=random.normal(size=(K, B)).astype(np.float32),
            discount=np.ones((K, B), np.float32),
            next_observation=observations[1],
        )
        keys = np.arange(K * B, dtype=np.uint64).reshape(K, B)
        probabilities = random.uniform(0.1, 1, (K, B)).astype(np.float32)
        sample = Sample(SampleInfo(keys, probabilities, np.full((K, B), 100, np.float32)), data)
        yield jax.tree.map(lambda x: x[:, rank * share : (rank + 1) * share], sample)


def noisy_line():
    """An update whose state holds a PRNG key."""

    def init(key):
        return {"w": jnp.ones(4), "key": key}

    def step(state, sample):
        key, noise = jax.random.split(state["key"])
        x, y = sample.data.observation, sample.data.reward
        error = lambda w: jnp.mean((x @ w - y) ** 2)  # noqa: E731
        value, gradient = jax.value_and_grad(error)(state["w"])
        w = state["w"] - 0.1 * gradient + 0.01 * jax.random.normal(noise, (4,))
        return {"w": w, "key": key}, UpdateOutput({"loss": value}, jnp.abs(x @ w - y))

    return Update(init, step, lambda state: {"policy": state["w"]})


def learners(rank, size):
    """Two learners, each with the list of what it writes back to the replay."""
    dqn = find_builder("dqn")
    dqn = dqn(
        dqn.config_class(
            hidden_sizes=(8,), batch_size=B, steps_per_dispatch=K, priority_exponent=0.6
        )
    )
    dqn = dqn.make_update(dqn.make_networks(SPEC), SPEC)
    cases = {
        "dqn": (dqn, "batch:data,zero3:data", None),
        "line": (noisy_line(), "batch:data", None),
        "laid": (dqn, "batch:data,megatron:model", "auto"),
        "turned": (dqn, "batch:data,megatron:model", "auto"),
    }
    for name, (update, schedule, placement) in cases.items():
        partition = None
        if size > 1:
            wide = size if placement else 1
            axes = {"data": jax.device_count() // wide, **({"model": wide} if wide > 1 else {})}
            if name == "turned":
                axes = dict(reversed(axes.items()))
            partition = Partition(
                partitioning.Mesh(axes), partitioning.parse_schedule(schedule), None, placement
            )
        written = []

        def write(keys, priorities, to=written):
            to.append((keys, priorities))

        def make(partition=partition, update=update, write=write):
            return SGDLearner(
                update,
                samples(rank, size),
                jax.random.key(1),
                steps_per_dispatch=K,
                write_priorities=write,
                partition=partition,
            )

        yield name, make, written


def saved(learner):
    """What a learner saves, leaf by leaf, with what it says that it saves."""
    pairs = zip(
        jax.tree.leaves(learner.save()["state"]),
        jax.tree.leaves(learner.saved_shapes["state"]),
        strict=True,
    )
    return [pair for pair in pairs if isinstance(pair[0], jax.Array)]


def whole(state):
    """A state as this process alone can read it."""

    def leaf(x):
        if not isinstance(x, jax.Array):
            return x
        everywhere = NamedSharding(x.sharding.mesh, PartitionSpec())
        return np.asarray(jax.jit(lambda x: x, out_shardings=everywhere)(x).addressable_data(0))

    return jax.tree.map(leaf, state)


def main(rank, size, address, out):
    if os.environ.get("EARLY"):
        jax.devices()  # Whoever uses jax before it has joined stays alone.
    if size > 1:
        joining.join(address, size, rank)
    found, orders = {}, []
    for name, make, written in learners(rank, size):
        first, second = make(), make()
        if size > 1:
            orders.append(first.plan.order)
        first.run(DISPATCHES)
        # What is saved in the middle goes on elsewhere, and what actors hold is whole.
        second.restore(first.save())
        (policy,) = first.get_variables(["policy"])
        assert all(len(leaf.devices()) == 1 for leaf in jax.tree.leaves(policy))
        second.step()
        for leaf, shape in saved(second):
            assert leaf.sharding.is_equivalent_to(shape.sharding, leaf.ndim)
        state = whole(second.save())
        found[f"{name}/steps"] = second.steps
        for i, leaf in enumerate(jax.tree.leaves(state["state"])):
            found[f"{name}/state/{i}"] = leaf
        for i, leaf in enumerate(jax.tree.leaves(policy)):
            found[f"{name}/policy/{i}"] = leaf
        found[f"{name}/keys"], found[f"{name}/priorities"] = map(
            np.stack, zip(*written, strict=True)
        )
        for metric, value in second.metrics().items():
            found[f"{name}/metric/{metric}"] = value
    if size > 1:
        # Which axis hosts share best depends on the version of jax; of two meshes that name the
        # axes in either order one is laid otherwise than its devices come.
        straight = tuple(range(jax.device_count()))
        assert any(order not in (None, straight) for order in orders), orders
    np.savez(out, **found)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
    sys.stdout.flush()
    if sys.argv[1] == "0":
        sys.stdin.read()  # Without this process the others would end as failures.
    os._exit(0)  # jax would wait for the others.

"""One rank of a gang that publishes the part of each version that its own devices hold.

`python parts.py RANK SIZE ADDRESS:PORT FOLDER SERVER-PORT` learns, publishes, and says as a line of
JSON what it held; it waits for a line of its input before every version but the first, and ends
with its input.
"""

import itertools
import json
import os
import pathlib
import sys
from multiprocessing import managers

import jax
import numpy as np

from troupe import partitioning
from troupe.agents import SGDLearner, Update, examples
from troupe.agents.programs.placement import Partition
from troupe.agents.variables.publisher import Publisher
from troupe.agents.variables.server import PartServer
from troupe.agents.variables.version_board import FileShelf
from troupe.launch.distributed.gang import joining

LAYOUT = "data=2,model=2", "batch:data,megatron:model,zero3:data"
KEY = b"parts"


class Manager(managers.BaseManager):
    """Finds the variable server of the process that reads."""


Manager.register("server")


def make_learner(rank=0, size=1, layout=LAYOUT):
    made = examples.make("dqn", features=6, hidden_sizes=(32, 16), batch_size=8)

    share = slice(rank * 8 // size, (rank + 1) * 8 // size)

    def batches():
        while True:
            batch = made.make_batch(jax.random.PRNGKey(0))
            yield jax.tree.map(lambda leaf: np.asarray(leaf)[None, share], batch)

    update = Update(
        lambda key: made.init(jax.random.key_data(key)),
        made.update,
        lambda state: {"policy": state[0]},
    )
    partition = None
    if layout is not None:
        mesh, schedule = layout
        partition = Partition(partitioning.parse_mesh(mesh), partitioning.parse_schedule(schedule))
    return SGDLearner(update, batches(), jax.random.key(0), partition=partition)


def held(variables):
    """Bytes of variables on the device that has most of them, and those of this process's own part,
    of what several processes hold a half each."""
    leaves = jax.tree.leaves(variables)
    most = max(
        sum(
            shard.data.nbytes
            for leaf in leaves
            for shard in leaf.addressable_shards
            if shard.device == one
        )
        for one in jax.local_devices()
    )
    return {"device": most, "all": sum(leaf.nbytes for leaf in leaves)}


def main(rank, size, address, folder, port):
    joining.HEARTBEAT_SECONDS = 60  # Nothing is killed amid a step, and compiling takes long.
    joining.join(address, size, rank)
    manager = Manager(("127.0.0.1", port), KEY)
    manager.connect()
    learner = make_learner(rank, size)
    own = pathlib.Path(folder) / str(rank)
    own.mkdir()
    server = PartServer(manager.server(), rank, size)
    publisher = Publisher(FileShelf(own), server, period=0.0)
    for version, _ in enumerate(itertools.chain([""], sys.stdin)):
        if version:
            learner.step()
        (policy,) = learner.variables_on_mesh(["policy"])
        publisher.offer({"policy": policy}, version)
        assert publisher.flush(60), publisher.error
        print(json.dumps(held(policy)), flush=True)
        del policy
    publisher.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))
    sys.stdout.flush()
    os._exit(0)  # jax would wait for the others.

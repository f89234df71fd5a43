"""Arrays from one layout to another: by value, in bytes, and in memory."""

import json
import math
import random

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from troupe import partitioning as pt
from troupe.partitioning import transfer
from troupe.partitioning.transfer import execute as executing
from troupe.partitioning.transfer.execute import execute

WHOLE = 12 * 16 * 4
"""Bytes of the array of the named pairs."""


def layout(axes, spec, devices=None, shape=(12, 16)):
    return transfer.ArrayLayout.of_spec(shape, np.float32, axes, spec, devices)


ROWS, COLUMNS = layout({"a": 4}, ("a",)), layout({"a": 4}, (None, "a"))
FAR = [4, 5, 6, 7]
PAIRS = {
    # name: source, target, bytes sent of all
    "the same": (ROWS, ROWS, 0),
    "one to four others": (layout({"a": 1}, ()), layout({"a": 4}, (), FAR), 4 * WHOLE),
    "gathered": (ROWS, layout({"a": 4}, ()), 3 * WHOLE),
    "sliced": (layout({"a": 4}, ()), ROWS, 0),
    "transposed": (ROWS, COLUMNS, WHOLE * 3 // 4),
    "moved": (ROWS, layout({"a": 4}, ("a",), FAR), WHOLE),
    "moved and transposed": (ROWS, layout({"a": 4}, (None, "a"), FAR), WHOLE),
    "tiles to rows": (layout({"a": 2, "b": 2}, ("a", "b")), ROWS, WHOLE // 2),
    "learner's columns to one of its devices": (
        layout({"data": 2, "model": 2}, (None, "model")),
        layout({"model": 1}, ()),
        WHOLE // 2,
    ),
    "to one other": (ROWS, layout({"model": 1}, (), [7]), WHOLE),
    "spread over all to columns": (
        layout({"fsdp": 8}, ((), "fsdp")),
        layout({"data": 2, "model": 4}, ("model",)),
        # Each of eight has a quarter afterwards, and an eighth of that before.
        8 * (WHOLE // 4 - WHOLE // 32),
    ),
    "two parts to three": (layout({"a": 2}, ("a",)), layout({"a": 3}, ("a",)), WHOLE // 2),
    "two axes on one dimension": (
        layout({"a": 2, "b": 2}, (("a", "b"),)),
        layout({"a": 2, "b": 2}, (("b", "a"),)),
        WHOLE // 2,
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_bytes_of_named_pairs_are_those_of_the_arithmetic(name):
    source, target, expected = PAIRS[name]
    plan = transfer.plan({"w": source}, {"w": target})
    assert plan.bytes_sent == expected == sum(plan.received.values())
    assert (plan.seconds > 0) == (expected > 0)


def test_a_block_enters_a_host_once_and_each_of_its_devices_takes_in_a_part():
    hosts = pt.hosts_topology("h100", 4, 3)
    target = layout({"a": 8}, (), range(4, 12))
    plan = transfer.plan({"w": ROWS}, {"w": target}, hosts)
    assert plan.bytes_by_level == {"host": 6 * WHOLE, "network": 2 * WHOLE}
    entered = {d: plan.bytes_by_wire.get(("in", 1, d), 0) for d in range(4, 12)}
    assert set(entered.values()) == {WHOLE // 4}


def test_copies_of_a_block_share_the_sending():
    source = layout({"a": 4}, ())
    arrays = {f"w{i}": source for i in range(8)}
    target = dict.fromkeys(arrays, layout({"b": 1}, (), [6]))
    plan = transfer.plan(arrays, target)
    assert [plan.sent[device] for device in range(4)] == [2 * WHOLE] * 4


def test_seconds_are_those_of_the_links():
    hosts = pt.Topology((pt.Level("host", 1, 1e9, 1e-6), pt.Level("network", 2, 1e6, 1e-3)))
    arrays = {f"w{i}": layout({"a": 1}, ()) for i in range(3)}
    there = dict.fromkeys(arrays, layout({"a": 1}, (), [1]))
    assert transfer.plan(arrays, there, hosts).seconds == pytest.approx(3 * WHOLE / 1e6 + 1e-3)


def test_a_wire_that_devices_share_carries_one_after_the_other():
    shared = pt.Topology((pt.Level("memory", 8, 1e6, 0.0, sharing=8),))
    plan = transfer.plan({"w": ROWS}, {"w": layout({"a": 4}, ("a",), FAR)}, shared)
    assert plan.seconds == pytest.approx(WHOLE / 1e6)


def test_what_differs_is_named():
    with pytest.raises(ValueError, match="w is missing at the target"):
        transfer.plan({"w": ROWS}, {})
    with pytest.raises(ValueError, match=r"w is float32\[12, 16\] at the source and float32\[8\]"):
        transfer.plan({"w": ROWS}, {"w": layout({"a": 4}, ("a",), shape=(8,))})
    with pytest.raises(ValueError, match="up to number 7, and the topology has 4; add hosts"):
        transfer.plan(
            {"w": ROWS}, {"w": layout({"a": 4}, (), FAR)}, pt.hosts_topology("h100", 4, 1)
        )
    with pytest.raises(
        ValueError, match=r"dimension 0 of the shape .* multiple of the 5 parts of a"
    ):
        layout({"a": 5}, ("a",))
    with pytest.raises(ValueError, match="no axis 'b'"):
        layout({"a": 4}, ("b",))
    with pytest.raises(ValueError, match="give PRNG keys as words"):
        transfer.ArrayLayout.of_spec((), jax.random.key(0).dtype, {"a": 1}, ())


def test_a_plan_travels_as_text_and_says_what_it_costs():
    source, target, _ = PAIRS["moved and transposed"]
    plan = transfer.plan({"w": source}, {"w": target}, pt.hosts_topology("h100", 4, 2))
    assert transfer.TransferPlan.from_json(json.dumps(plan.to_json())) == plan
    text = plan.explain()
    assert "1 arrays of 768 B, 768 B sent in" in text
    assert "over network: 768 B" in text
    assert "w float32[12, 16]: from 4x1 parts to 1x4 parts, 768 B sent" in text
    assert "no byte is sent" in str(transfer.plan({"w": ROWS}, {"w": ROWS}))


def test_layouts_of_a_planned_step_need_no_devices():
    def step(state, batch):
        return {"w": state["w"] + batch.sum()}, batch.mean()

    mesh = pt.Mesh({"data": 16, "model": 4})
    tactics = [
        pt.Manual("zero3", {"state/w": 0}, "data"),
        pt.Manual("columns", {"state/w": 1}, "model"),
    ]
    shapes = (
        {"w": jax.ShapeDtypeStruct((32, 8), np.float32)},
        jax.ShapeDtypeStruct((32,), np.float32),
    )
    planned = pt.partition(step, mesh, tactics).plan(*shapes)
    found = transfer.input_layouts(planned, ["state"], range(100, 164))
    assert list(found) == ["state/w"]
    assert found["state/w"] == transfer.ArrayLayout.of_spec(
        (32, 8), np.float32, mesh.axes, ("data", "model"), range(100, 164)
    )


def random_sharding(rng):
    """A sharding over some of eight devices, in any order."""
    devices = rng.sample(jax.devices(), rng.choice([1, 2, 3, 4, 6, 8]))
    sizes, rest = [], len(devices)
    while rest > 1 and len(sizes) < 2:
        sizes.append(rng.choice([n for n in range(2, rest + 1) if rest % n == 0]))
        rest //= sizes[-1]
    sizes.append(rest)
    names = ["x", "y", "z"][: len(sizes)]
    mesh = jax.sharding.Mesh(np.array(devices).reshape(sizes), names)
    spec = [[], [], []]
    for name in rng.sample(names, len(names)):
        if rng.random() < 0.75:
            spec[rng.randrange(3)].append(name)
    return NamedSharding(mesh, PartitionSpec(*(tuple(one) or None for one in spec)))


def by_axes(shape, dtype, sharding):
    mesh = sharding.mesh
    numbers = [device.id for device in mesh.devices.flat]
    return transfer.ArrayLayout.of_spec(shape, dtype, mesh.shape, sharding.spec, numbers)


def random_case(seed):
    """Arrays with two shardings and layouts each, and how many uneven ones jax refused."""
    rng = random.Random(seed)
    refused, cases = 0, {}
    while len(cases) < 3:
        shape = tuple(rng.choice([1, 2, 3, 4, 6, 8, 12, 24]) for _ in range(3))
        dtype = rng.choice([np.float32, np.int8, jax.numpy.bfloat16])
        shardings = random_sharding(rng), random_sharding(rng)
        try:
            layouts = [transfer.ArrayLayout.of_sharding(shape, dtype, one) for one in shardings]
        except ValueError:
            with pytest.raises(ValueError, match="is not a multiple of"):
                [by_axes(shape, dtype, one) for one in shardings]
            refused += 1
            continue
        assert [by_axes(shape, dtype, one) for one in shardings] == layouts
        values = np.array(rng.choices(range(100), k=math.prod(shape))).reshape(shape).astype(dtype)
        cases[f"w{len(cases)}"] = (values, *shardings, *layouts)
    return cases, refused


def shard_bytes(cases):
    blocks = ((one, b) for case in cases.values() for one in case[3:] for b in one.holders)
    return max(one.itemsize * math.prod(stop - start for start, stop in b) for one, b in blocks)


def in_memory(plan):
    """Of each device the most that lies there beside both layouts' shards, copy by copy."""
    most = dict.fromkeys(plan.devices, 0)
    for copies in plan.rounds:
        beside = dict.fromkeys(plan.devices, 0)
        for copy in copies:
            into = plan.target[copy.array].blocks[copy.target]
            of = (plan.target if copy.is_relayed else plan.source)[copy.array].blocks[copy.source]
            beside[copy.target] += copy.nbytes if copy.block != into else 0
            if copy.source != copy.target:
                beside[copy.source] += copy.nbytes if copy.block != of else 0
        most = {device: max(most[device], beside[device]) for device in most}
    return most


@pytest.mark.parametrize("seed", range(20))
def test_random_pairs_of_layouts_are_equal_by_value(seed, monkeypatch):
    """Five times twenty transfers of three arrays each; nothing larger than a shard is made."""
    sizes = []
    for kind in (executing._HostBlocks, executing._DeviceBlocks):
        for name in ("cut", "empty", "write"):
            monkeypatch.setattr(kind, name, _watched(getattr(kind, name), sizes))
    for number in range(5 * seed, 5 * seed + 5):
        cases, _ = random_case(number)
        plan = transfer.plan(
            {name: case[3] for name, case in cases.items()},
            {name: case[4] for name, case in cases.items()},
            pt.hosts_topology("h100", 2, 4),
        )
        shard = shard_bytes(cases)
        for device in plan.devices:
            assert plan.sent[device] <= plan.shares.get(device, 0) + shard
            assert in_memory(plan)[device] <= shard
        arrays = {name: jax.device_put(case[0], case[1]) for name, case in cases.items()}
        shardings = {name: case[2] for name, case in cases.items()}
        sizes.clear()
        # Devices compile for every shape: one case of five.
        host = None if number % 5 else False
        found = execute(plan, arrays, shardings, in_host_memory=host)
        for name, case in cases.items():
            assert found[name].sharding == case[2]
            np.testing.assert_array_equal(np.asarray(found[name]), case[0])
        assert max(sizes, default=0) <= shard


def _watched(method, sizes):
    def watched(*args):
        made = method(*args)
        sizes.append(made.nbytes)
        return made

    return watched


def test_jax_refuses_some_of_the_random_layouts():
    assert sum(random_case(seed)[1] for seed in range(5)) > 0


@pytest.mark.parametrize("in_host_memory", [True, False])
def test_what_is_there_already_is_not_copied_unless_it_will_be_donated(in_host_memory):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("a",))
    rows = NamedSharding(mesh, PartitionSpec("a"))
    array = jax.device_put(np.arange(8.0), rows)
    of = {"w": transfer.ArrayLayout.of_sharding((8,), np.float32, rows)}
    plan = transfer.plan(of, of)
    assert not plan.copies
    same = execute(plan, {"w": array}, {"w": rows}, in_host_memory=in_host_memory)["w"]
    other = execute(
        plan, {"w": array}, {"w": rows}, may_alias=False, in_host_memory=in_host_memory
    )["w"]
    first = [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]
    assert [s.data.unsafe_buffer_pointer() for s in same.addressable_shards] == first
    assert not {s.data.unsafe_buffer_pointer() for s in other.addressable_shards} & {*first}
    array.delete()
    np.testing.assert_array_equal(np.asarray(other), np.arange(8.0))


@pytest.mark.parametrize("in_host_memory", [True, False])
@pytest.mark.parametrize("spec", [(None, "a"), ("a",)])
def test_results_live_on_when_their_source_is_donated(in_host_memory, spec):
    here, there = (
        NamedSharding(jax.sharding.Mesh(np.array(jax.devices()[a:b]), ("a",)), PartitionSpec(*one))
        for a, b, one in ((0, 2, ("a",)), (1, 5, spec))
    )
    values = np.arange(64.0 * 64).reshape(64, 64)
    array = jax.device_put(values.astype(np.float32), here)
    of, to = (
        {"w": transfer.ArrayLayout.of_sharding((64, 64), np.float32, one)} for one in (here, there)
    )
    plan, options = transfer.plan(of, to), {"may_alias": False, "in_host_memory": in_host_memory}
    found = execute(plan, {"w": array}, {"w": there}, **options)["w"]
    given = [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]
    for shard in found.addressable_shards:
        at = shard.data.unsafe_buffer_pointer()
        assert not any(start <= at < start + array.nbytes // 2 for start in given)
    jax.block_until_ready(jax.jit(lambda x: x * 0 - 1, donate_argnums=0)(array))
    np.testing.assert_array_equal(np.asarray(found), values)


def test_an_array_without_elements_has_its_layout():
    sharding = NamedSharding(
        jax.sharding.Mesh(np.array(jax.devices()[:2]), ("a",)), PartitionSpec("a")
    )
    array = jax.device_put(np.zeros((0, 3), np.float32), jax.devices()[3])
    layouts = [
        {"w": transfer.ArrayLayout.of_sharding((0, 3), np.float32, one)}
        for one in (array.sharding, sharding)
    ]
    found = execute(transfer.plan(*layouts), {"w": array}, {"w": sharding})["w"]
    assert found.shape == (0, 3)
    assert found.sharding == sharding

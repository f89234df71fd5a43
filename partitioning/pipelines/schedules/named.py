"""The named schedules of pipelines, each made as a table."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence

from ..edges import Edges, Work, chain, forward_chains
from ..orders import lay_out
from ..table import PipelineCell, PipelineTable


def gpipe(stages: int, microbatches: int) -> PipelineTable:
    """GPipe: all forward passes, then all backward passes in the opposite order.

    A stage keeps the activations of all micro-batches (https://arxiv.org/abs/1811.06965).
    """
    _at_least_one(stages=stages, microbatches=microbatches)
    orders = [
        [PipelineCell(stage, m, "forward") for m in range(microbatches)]
        + [PipelineCell(stage, m, "backward") for m in reversed(range(microbatches))]
        for stage in range(stages)
    ]
    return lay_out(orders, straight(stages), microbatches, chain(stages))


def one_f_one_b(stages: int, microbatches: int) -> PipelineTable:
    """1F1B: a stage runs one forward and one backward pass in turn.

    Stage s of p keeps the activations of at most p - s micro-batches; the bubble is GPipe's
    (PipeDream-Flush, https://arxiv.org/abs/2006.09503).
    """
    return interleaved(stages, microbatches, 1)


def interleaved(devices: int, microbatches: int, chunks: int) -> PipelineTable:
    """Interleaved 1F1B: each device has several chunks, segments d, d + p, d + 2p, ...

    The bubble is divided by the number of chunks, messages are multiplied by it, and more
    activations are kept (https://arxiv.org/abs/2104.04473).

    Args:
      devices: of the axis; with several chunks they must divide the micro-batches, which pass
        through in groups of so many.
    """
    _at_least_one(devices=devices, microbatches=microbatches, chunks=chunks)
    if chunks > 1 and microbatches % devices:
        raise ValueError(
            f"interleaved 1F1B passes groups of {devices} micro-batches, one for each device, "
            f"through its chunks, and {microbatches} are no such groups; take a multiple of "
            f"{devices}, or one chunk a device"
        )
    group = devices if chunks > 1 else microbatches
    turns = [
        (chunk, m)
        for first in range(0, microbatches, group)
        for chunk in range(chunks)
        for m in range(first, first + group)
    ]
    orders = []
    for device in range(devices):
        forward = [PipelineCell(c * devices + device, m, "forward") for c, m in turns]
        backward = [
            PipelineCell((chunks - 1 - c) * devices + device, m, "backward") for c, m in turns
        ]
        ahead = devices - 1 - device
        if chunks > 1:
            # Twice the way to the end, as a micro-batch comes back only after its last chunk.
            ahead = 2 * ahead + (chunks - 1) * devices
        orders.append(_alternating(forward, backward, min(ahead, len(forward))))
    placement = [(segment % devices,) for segment in range(chunks * devices)]
    return lay_out(orders, placement, microbatches, chain(chunks * devices))


def zero_bubble(stages: int, microbatches: int) -> PipelineTable:
    """Zero bubble H1: gradients of weights fill what would be bubbles in 1F1B.

    Stage s runs gradients of weights s micro-batches after those of inputs, so that each stage
    keeps as many activations as the first one of 1F1B (https://arxiv.org/abs/2401.10241).
    """
    _at_least_one(stages=stages, microbatches=microbatches)
    orders = []
    for stage in range(stages):
        forward, inputs, weights = (
            [PipelineCell(stage, m, work) for m in range(microbatches)]
            for work in ("forward", "inputs", "weights")
        )
        order = _alternating(forward, inputs, min(stages - 1 - stage, microbatches))
        for m in range(microbatches - stage):
            order.insert(order.index(inputs[m + stage]) + 1, weights[m])
        orders.append([*order, *weights[max(microbatches - stage, 0) :]])
    return lay_out(orders, straight(stages), microbatches, chain(stages))


def dualpipe_v(devices: int, microbatches: int) -> PipelineTable:
    """DualPipe-V: 2p segments in a V on p devices, each of which is at both ends of the model.

    Micro-batches on their way down and on their way up meet on every device, so that one runs
    forward while the other runs backward. While the pipeline fills and drains, gradients of weights
    are put off (https://github.com/deepseek-ai/DualPipe).
    """
    _at_least_one(devices=devices, microbatches=microbatches)
    if microbatches < 2 * devices:
        raise ValueError(
            f"DualPipe-V on {devices} devices needs at least {2 * devices} micro-batches, two a "
            f"device, to fill both ways; there are {microbatches}"
        )
    orders = [_v_order(device, devices, microbatches) for device in range(devices)]
    return lay_out(orders, v_shaped(devices), microbatches, chain(2 * devices))


def several_forwards(
    stages: int, microbatches: int, forwards: int = 3, *, recycled: bool = False
) -> PipelineTable:
    """3F1B: 1F1B with several forward passes to one backward pass, that of the last of them.

    Stage s of chain c is segment c * stages + s; the edges are those of `stage_chains`.

    Args:
      forwards: how many chains there are.
      recycled: True if a chain begins with the result of the one before. Then it runs as many
        micro-batches later as there are stages.
    """
    _at_least_one(stages=stages, microbatches=microbatches, forwards=forwards)
    lag = stages if recycled else 0
    turns = range(microbatches + (forwards - 1) * lag + stages - 1)
    orders = []
    for stage in range(stages):
        last = (forwards - 1) * stages + stage
        order: list[PipelineCell] = []
        for turn in turns:
            for one in range(forwards):
                if 0 <= turn - one * lag < microbatches:
                    order.append(PipelineCell(one * stages + stage, turn - one * lag, "forward"))
            back = turn - (forwards - 1) * lag - (stages - 1 - stage)
            if 0 <= back < microbatches:
                order.append(PipelineCell(last, back, "backward"))
        orders.append(order)
    edges = stage_chains(stages, forwards, recycled=recycled)
    return lay_out(orders, straight(stages) * forwards, microbatches, edges)


def stage_chains(stages: int, forwards: int, *, recycled: bool = False) -> Edges:
    """The edges of several forward passes over the same stages; see `forward_chains`."""
    starts = range(0, stages * forwards, stages)
    return forward_chains([range(s, s + stages) for s in starts], recycled=recycled)


def passes_of(table: PipelineTable) -> int:
    """The number of forward passes of a table, which are chains of as many segments each.

    Segments that never run backward belong to passes that are not differentiated; those of the last
    pass do.
    """
    turned = {cell.segment for cell in table.step_of if cell.work != "forward"}
    chained = turned == {*range(table.segments - len(turned), table.segments)}
    if not turned or not chained or table.segments % len(turned):
        return 1
    return table.segments // len(turned)


def straight(stages: int) -> list[tuple[int, ...]]:
    """The placement of segment s on device s."""
    return [(stage,) for stage in range(stages)]


def v_shaped(devices: int) -> list[tuple[int, ...]]:
    """The placement of 2p segments that goes down the devices and comes back up."""
    return [(device,) for device in (*range(devices), *reversed(range(devices)))]


def _alternating(
    forward: Sequence[PipelineCell], backward: Sequence[PipelineCell], ahead: int
) -> list[PipelineCell]:
    """Some forward cells, then a forward and a backward one in turn, then backward ones."""
    order = [*forward[:ahead]]
    for one, other in zip(forward[ahead:], backward, strict=False):
        order += [one, other]
    return [*order, *backward[len(forward) - ahead :]]


def _at_least_one(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"a pipeline of {count} {name}; it needs at least one")


def _v_order(device: int, devices: int, microbatches: int) -> list[PipelineCell]:
    """The order of one device in DualPipe-V."""
    down, up = device, 2 * devices - 1 - device
    below, above = devices - 1 - device, device + 1
    order: list[PipelineCell] = []
    late: list[PipelineCell] = []
    counts: collections.Counter[tuple[int, bool]] = collections.Counter()

    def run(segment: int, *works: Work) -> None:
        """Appends the next micro-batch of a segment in one direction."""
        key = segment, works[0] == "forward"
        order.extend(PipelineCell(segment, counts[key], work) for work in works)
        counts[key] += 1

    def inputs_alone(segment: int) -> None:
        """Appends the gradient of inputs, and puts off that of weights."""
        late.append(PipelineCell(segment, counts[segment, False], "weights"))
        run(segment, "inputs")

    for _ in range(2 * below):
        run(down, "forward")
    for _ in range(above):
        run(down, "forward")
        run(up, "forward")
    for _ in range(below):
        run(up, "inputs", "weights")
        run(up, "forward")
    for _ in range(microbatches - 2 * devices + above):
        run(down, "forward")
        run(up, "backward")
        run(up, "forward")
        run(down, "backward")
    for _ in range(below):
        run(up, "backward")
        run(up, "forward")
        run(down, "backward")
    for turn in range(2 * above):
        segment = down if turn % 2 else up
        if turn < above:
            run(segment, "backward")
        else:
            inputs_alone(segment)
    for _ in range(below):
        order.append(late.pop(0))
        inputs_alone(down)
    return order + late


#: The schedules by name: devices of the axis and micro-batches to a table and its edges.
SCHEDULES: Mapping[str, Callable[[int, int], tuple[PipelineTable, Edges]]] = {
    "gpipe": lambda p, m: (gpipe(p, m), chain(p)),
    "1f1b": lambda p, m: (one_f_one_b(p, m), chain(p)),
    "interleaved": lambda p, m: (interleaved(p, m, 2), chain(2 * p)),
    "zero-bubble": lambda p, m: (zero_bubble(p, m), chain(p)),
    "dualpipe-v": lambda p, m: (dualpipe_v(p, m), chain(2 * p)),
    "3f1b": lambda p, m: (several_forwards(p, m), stage_chains(p, 3)),
}


def named_schedule(name: str, devices: int, microbatches: int) -> tuple[PipelineTable, Edges]:
    """The schedule of a name, with two chunks a device if interleaved, and its edges.

    Raises:
      ValueError: there is none of that name, or it cannot be made for so many micro-batches.
    """
    if name not in SCHEDULES:
        raise ValueError(f"no schedule {name!r}; there are {', '.join(SCHEDULES)}")
    return SCHEDULES[name](devices, microbatches)

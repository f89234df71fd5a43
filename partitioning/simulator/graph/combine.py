"""All_reduces that do not wait for each other become one, as later compilers do."""

from __future__ import annotations

from typing import Any

from .nodes import ELEMENT, OPAQUE, ArrayGraph, ArrayNode


def combine_all_reduces(graph: ArrayGraph) -> None:
    """Makes one of all_reduces over the same axes that do not wait for each other."""
    for by_level in (False, True):
        groups = _independent(graph, by_level)
        if _reorder(graph, groups):
            return


def _independent(graph: ArrayGraph, by_level: bool) -> list[list[ArrayNode]]:
    """Groups all_reduces that do not need each other's results; `by_level` rules out cycles."""
    before: list[int] = []
    level: list[int] = []
    masks: dict[Any, list[tuple[int, list[ArrayNode]]]] = {}
    count = 0
    for node in graph.nodes:
        seen = depth = 0
        for operand in node.operands:
            seen |= before[operand.index]
            depth = max(depth, level[operand.index])
        if node.name == "all_reduce" and node.op is not None and node.nbytes:
            key = (str(node.op.params), node.op.inputs[0].dtype, depth if by_level else 0)
            bit = 1 << count
            count += 1
            groups = masks.setdefault(key, [])
            for place, (mask, members) in enumerate(groups):
                if not seen & mask:
                    groups[place] = (mask | bit, [*members, node])
                    break
            else:
                groups.append((bit, [node]))
            seen |= bit
            depth += 1
        before.append(seen)
        level.append(depth)
    return [members for groups in masks.values() for _, members in groups if len(members) > 1]


def _reorder(graph: ArrayGraph, groups: list[list[ArrayNode]]) -> bool:
    """Puts one node in the place of each group; false, and nothing done, where it cannot be."""
    group_of: dict[ArrayNode, ArrayNode] = {}
    for members in groups:
        group = ArrayNode(-1, OPAQUE, "all_reduce", 0, ())
        group.operands = list(dict.fromkeys(n for m in members for n in m.operands))
        group.op = members[0].op
        group.data = sum(m.nbytes for m in members)
        group.flops = sum(m.flops for m in members)
        group_of.update(dict.fromkeys(members, group))
    needs = {n: [group_of[n]] if n in group_of else n.operands for n in graph.nodes}
    needs.update({g: g.operands for g in group_of.values()})
    ordered: list[ArrayNode] = []
    state: dict[ArrayNode, int] = {}
    for start in graph.nodes:
        stack = [start]
        while stack:
            node = stack[-1]
            if state.get(node) == 2:
                stack.pop()
                continue
            waiting = [n for n in needs[node] if state.get(n) != 2]
            if not waiting:
                state[node] = 2
                ordered.append(node)
                stack.pop()
                continue
            state[node] = 1
            if any(state.get(n) == 1 for n in waiting):
                return False
            stack.extend(waiting)
    for members in groups:
        for position, member in enumerate(members):
            member.kind, member.operands = ELEMENT, [group_of[member]]
            member.data = position
    for index, node in enumerate(ordered):
        node.index = index
    graph.nodes = ordered
    return True

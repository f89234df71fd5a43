"""Convolutions and windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ir.program import Op
from .factor import Rule, RuleBuilder
from .registry import register


@register(
    "conv_general_dilated",
    "convolution",
    "batch and output features pass through; input features reduce by sum; groups are their own "
    "factor; spatial dimensions are needed whole",
)
def convolution(op: Op) -> Rule:
    build = RuleBuilder(op)
    lhs, rhs = op.inputs
    numbers = op.params["dimension_numbers"]
    batch, features = numbers.lhs_spec[:2]
    filters, channels = numbers.rhs_spec[:2]
    out_batch, out_features = numbers.out_spec[:2]
    groups, batch_groups = op.params["feature_group_count"], op.params["batch_group_count"]
    group_factor = batch_group_factor = None
    if groups > 1:
        group_factor = build.factor(groups, [(0, features), (1, filters)], [(0, out_features)])
        build.factor(lhs.shape[batch], [(0, batch)], [(0, out_batch)])
    elif batch_groups > 1:
        batch_group_factor = build.factor(
            batch_groups, [(0, batch), (1, filters)], [(0, out_features)]
        )
        build.factor(lhs.shape[features], [(0, features), (1, channels)], monoid="sum")
    else:
        build.factor(lhs.shape[batch], [(0, batch)], [(0, out_batch)])
        build.factor(rhs.shape[filters], [(1, filters)], [(0, out_features)])
        build.factor(lhs.shape[features], [(0, features), (1, channels)], monoid="sum")

    def localize(params: Mapping[str, Any], ins: Any, outs: Any) -> dict[str, Any]:
        local = dict(params)
        if group_factor is not None:
            local["feature_group_count"] = ins[0][features] * groups // lhs.shape[features]
        if batch_group_factor is not None:
            local["batch_group_count"] = ins[0][batch] * batch_groups // lhs.shape[batch]
        return local

    return build.rule(localize)


@register(
    "reduce_window reduce_window_sum reduce_window_max reduce_window_min select_and_gather_add "
    "select_and_scatter_add select_and_scatter cumulative_window",
    "convolution",
    "dimensions with a window of one pass through",
)
def window(op: Op) -> Rule:
    build = RuleBuilder(op)
    params = op.params
    rank = op.outputs[0].ndim
    ones = (1,) * rank
    base = params.get("base_dilation") or ones
    inner = params.get("window_dilation") or ones
    for dim in range(rank):
        plain = (
            params["window_dimensions"][dim]
            == params["window_strides"][dim]
            == base[dim]
            == inner[dim]
            == 1
        )
        if plain and tuple(params["padding"][dim]) == (0, 0):
            carriers = [(i, dim) for i, v in enumerate(op.inputs) if v.ndim == rank]
            build.factor(
                op.outputs[0].shape[dim], carriers, [(i, dim) for i in range(len(op.outputs))]
            )
    return build.rule()

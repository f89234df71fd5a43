"""Ops that run as they are, on whole operands: what happens inside them is not known or not worth
knowing.
"""

from __future__ import annotations

from .registry import without_rule

without_rule(
    "pure_callback io_callback debug_callback debug_print",
    "calls the host: the first device does, once, and tells the others the result",
)
without_rule("ffi_call pallas_call custom_partitioning", "code that jax does not see into")
without_rule(
    "linear_call custom_transpose_call reduce scaled_dot",
    "holds functions or groups of its own; too rare to tile",
)
without_rule(
    "ragged_dot_general",
    "on TPU computed whole; elsewhere written as a masked product, and split as one",
)
without_rule(
    "shard_map xla_pmap ppermute psum pmax pmin axis_index",
    "is partitioned already; a step that holds some is refused",
)

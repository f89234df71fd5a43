"""Lowering: a decided program on local shapes, with explicit collectives."""

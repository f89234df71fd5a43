"""Benchmarks of language models: decoding beside its bound, continuous beside static batching, and
the rates of an accelerator."""

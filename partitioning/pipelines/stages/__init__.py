"""A traced step cut into the cells of a pipeline: segments by micro-batches."""

"""The results page: `python -m troupe.baselines.report RUN_OR_FOLDER ... --out FOLDER`."""

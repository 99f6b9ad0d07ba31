"""Processes of their own that start at once: forks of a server that has imported torch and Transformers already."""

import multiprocessing

CONTEXT = multiprocessing.get_context("forkserver")
# In one place, because there is one server for all tests.
CONTEXT.set_forkserver_preload(["tests.cli.runner", "tests.training.runs", "tests.criticality.sweeps"])

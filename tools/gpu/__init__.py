"""Measurements that need a machine with a GPU: `make gpu` makes all of them and writes one JSON file."""

from asr_server.core.environment import prefer

# As the engine sets it before it imports torch, which these modules import sooner: threads that spin take the cores of
# the others.
prefer("OMP_WAIT_POLICY", "PASSIVE")
prefer("PYTORCH_ALLOC_CONF", "expandable_segments:True")

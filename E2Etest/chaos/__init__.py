"""Load and faults on the real server: each test demonstrates a guarantee of `tools/guarantees`."""

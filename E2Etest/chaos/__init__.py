"""Load and faults on the real server: each test demonstrates a guarantee of `E2Etest/guarantees.py`."""

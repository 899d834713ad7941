"""Load and faults on the real server: each test shows a promise of `E2Etest/promises.py`."""

"""The replicas that Ray Serve sends requests to, as far as this process, which runs one of them, knows.

Ray Serve pickles the router's module by value, so the state is here.
"""

running: frozenset[str] = frozenset()

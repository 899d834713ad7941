"""The replicas that Ray Serve sends requests to, as the process of one of them knows them.

Ray Serve pickles the router's module by value, so the state is here.
"""

running: frozenset[str] = frozenset()

"""The server as a Ray Serve application, with two engine replicas. Needs requirements-cluster.txt."""

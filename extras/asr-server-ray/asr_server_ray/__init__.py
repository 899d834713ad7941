"""The server as a Ray Serve application: one deployment with the app, one with a replica for each engine."""

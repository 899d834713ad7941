"""A thin process without the model libraries: starts, watches, proxies to and ends a worker that runs the app."""

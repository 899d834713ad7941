"""One server whose port several processes serve."""

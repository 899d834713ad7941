"""What depends on the host: memory nodes, and Granian as the web server."""

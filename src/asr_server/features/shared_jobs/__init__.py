"""Jobs that several servers share in a database."""

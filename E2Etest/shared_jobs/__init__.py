"""Jobs that several servers share in one database."""

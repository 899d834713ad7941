"""How many sessions and how much audio a replica serves, and how many replicas a load needs, from measured costs."""

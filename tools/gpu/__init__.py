"""What only a machine with a GPU can show: `make gpu` measures all of it and writes one JSON file."""

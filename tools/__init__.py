"""Programs for work on this repository. The wheel leaves them out."""

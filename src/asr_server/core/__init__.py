"""The nouns everyone shares; imports nothing else of the package."""

"""Moonshine tiny (English): a small recogniser whose weights come with a Python package."""

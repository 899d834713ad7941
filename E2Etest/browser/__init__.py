"""The page at `/`, used as a person uses it, in a headless Chromium."""

"""Speakers of recordings and live sessions, and voices that have names."""

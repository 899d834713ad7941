"""Who speaks: speakers of recordings and live sessions, and voices that have names."""

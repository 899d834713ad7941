"""The wire: parse, call one service, translate errors by one table. No decision about transcription is taken here."""

"""A recording from the form to the answer: request, spans, words and rendering."""

"""Who said what: conversations of real people, made from recordings with known words, and what is measured on them."""

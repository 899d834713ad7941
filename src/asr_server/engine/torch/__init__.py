"""Parts that engines on torch share: memory of rows, passes, layers, 8 bits, recorded steps and sampling."""

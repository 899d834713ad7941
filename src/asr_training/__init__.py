"""How the demo checkpoint was made, runnable again. The server never imports this package."""

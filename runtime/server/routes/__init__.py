"""The server's paths, a module for each group of them."""

"""Generated text, as it streams, into reasoning, content and calls of tools."""

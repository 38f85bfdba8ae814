"""Constraints on generated text: what a request may say, compiled to token bitmasks."""

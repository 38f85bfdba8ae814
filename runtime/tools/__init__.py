"""Calls of tools as models write them: their formats, and what a chat template says of them."""

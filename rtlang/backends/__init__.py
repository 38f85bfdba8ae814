"""Clients of a runtime: what a program's calls run on."""

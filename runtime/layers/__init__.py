"""The one layer library: every architecture is the shared decoder with other settings."""

"""The HTTP server: one scheduler, one or several frontends, and what operators need."""

"""Load tests of servers: open-loop arrivals, what clients see, and whether it was good enough."""

"""Engines: what can run a graph. One ranked list of plans is made from all of them."""

"""The hub's own wire: what of it outlives a connection. (Its protocol is in `connection`.)"""

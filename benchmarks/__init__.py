"""Measurements that say how much they can be trusted."""

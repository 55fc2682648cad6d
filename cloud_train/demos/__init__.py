"""Demonstrations: `refocus demo`, and a simulated fleet."""

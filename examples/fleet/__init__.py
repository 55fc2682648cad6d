"""Simulated fleet of devices that recognise drawn letters.

It goes through two releases.
"""

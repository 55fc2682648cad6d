"""Camera rolls in which some photos show none of a classifier's classes.

Contains the photos, their dealing to people, and the marking of unknown photos.
"""

__all__ = ["dealing", "drawn", "marking", "points"]

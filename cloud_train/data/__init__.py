"""Photos and clips of many people: folders, arrays, Omniglot, drawn letters; pseudo-clients, windows."""

__all__ = [
    "arrays",
    "glyphs",
    "image_tensors",
    "imagefolder",
    "moving_glyphs",
    "omniglot",
    "partitions",
    "pseudo_people",
    "table",
    "windows",
]

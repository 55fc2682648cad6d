"""Photos of many people: folders, arrays, Omniglot, drawn letters; partitions into pseudo-clients and windows."""

__all__ = [
    "arrays",
    "glyphs",
    "image_tensors",
    "imagefolder",
    "omniglot",
    "partitions",
    "pseudo_people",
    "table",
    "windows",
]

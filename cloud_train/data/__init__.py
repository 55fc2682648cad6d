"""Photos and clips of many people: folders, arrays, Omniglot, drawn letters; pseudo-clients, windows."""

__all__ = ["glyphs", "image_tensors", "imagefolder", "moving_glyphs", "partitions", "sources", "table", "windows"]

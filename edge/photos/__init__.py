"""Photo and clip decoding and preprocessing: formats, limits, frames, orientation, colour, resizing."""

from refocus.edge.photos.preprocess import MAX_PHOTO_BYTES, cropped, decode_photo, preprocess, read_photo

__all__ = ["MAX_PHOTO_BYTES", "cropped", "decode_photo", "preprocess", "read_photo"]

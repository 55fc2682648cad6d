"""Photo decoding and preprocessing: formats, limits, orientation, colour, resizing."""

from refocus.edge.photos.preprocess import (
    MAX_PHOTO_BYTES,
    decode_for,
    decode_photo,
    preprocess,
    read_photo,
    resize_and_crop,
)

__all__ = ["MAX_PHOTO_BYTES", "decode_for", "decode_photo", "preprocess", "read_photo", "resize_and_crop"]

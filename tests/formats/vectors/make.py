"""Writes the vectors beside it from what docs/formats states, without any code of Refocus.

Run it after changing it or a module beside it: ``python tests/formats/vectors/make.py``. What it writes does not depend
on the machine.
"""

from __future__ import annotations

import base64

import bundles
import others
import shares
import unfit_bundles
from pieces import FILES, HERE, VECTORS, bases, text_of


def main() -> None:
    for group in (*bundles.GROUPS, *unfit_bundles.GROUPS, *shares.GROUPS):
        group()
    written = {
        "bundles": {
            "bases": bases(),
            "files": {path: base64.b64encode(content).decode() for path, content in FILES.items()},
            "vectors": VECTORS,
        },
        "tensors": {"vectors": others.tensor_vectors()},
        "channels": {"vectors": others.channel_vectors()},
        "android-profiles": {"vectors": others.android_vectors()},
        "class-shares": {"vectors": shares.arithmetic()},
    }
    for name, document in written.items():
        names = [vector["name"] for vector in document["vectors"]]
        assert len(set(names)) == len(names), sorted(n for n in names if names.count(n) > 1)
        lines = ",\n".join(text_of(vector) for vector in document.pop("vectors"))
        head = text_of(document)[1:-1]
        (HERE / f"{name}.json").write_text(
            f'{{{head}{"," if head else ""}"vectors":[\n{lines}\n]}}\n', encoding="utf-8"
        )


if __name__ == "__main__":
    main()

"""The pages of Refocus in Debian's headless Chromium: for tests, and for the pictures of the documentation.

``python -m tests.browser demo demo-train`` draws ``docs/pictures/*-page.png`` from the runs of both demos.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
SIZE = 1280, 900
OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # root has none
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
    f"--window-size={SIZE[0]},{SIZE[1]}",
)


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A WebDriver of a fresh Chromium."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    with tempfile.TemporaryDirectory() as profile:
        for option in (*OPTIONS, f"--user-data-dir={profile}"):
            options.add_argument(option)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options, Service(DRIVER))
        try:
            yield driver
        finally:
            driver.quit()


def show(driver: Any, page: Path, dark: bool = False) -> None:
    """Opens a file in light or dark colours."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.get(page.resolve().as_uri())


def accessibility_violations(driver: Any) -> list[str]:
    """Findings of axe-core on the page that is open: rule, what is wrong, and where."""
    driver.execute_script(files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    found = driver.execute_async_script("const done = arguments[0]; axe.run().then(done)")
    return [
        f"{rule['id']}: {rule['help']}: {node['html'][:200]}" for rule in found["violations"] for node in rule["nodes"]
    ]


def demo_page(out: Path) -> Path:
    """The demo's report of the committed results; of its example, any letter stands for the photos."""
    import numpy as np
    from PIL import Image

    from refocus.cloud_train.evaluate.report import write_report

    results = json.loads((ROOT / "docs" / "results" / "demo.json").read_text(encoding="utf-8"))
    letter = out.with_suffix(".png")
    Image.fromarray(np.tile(np.arange(0, 256, 8, dtype=np.uint8), (32, 1))).save(letter)
    write_report(results, lambda name: letter.read_bytes(), out)
    return out


def bench_page(folder: Path) -> Path:
    """The report of one committed document of the benchmark suite."""
    from refocus.benchmarks.report.report import write_report

    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "docs" / "results" / "suite" / "mobilenetv3_large_100-onnx-fp32.json", folder)
    return write_report(folder)[0]


def main(demo: Path, train: Path) -> None:
    """Draw the pictures of the documentation from runs of ``make demo`` and ``make demo-train``."""
    pictures = ROOT / "docs" / "pictures"
    with browser() as driver, tempfile.TemporaryDirectory() as temporary:
        show(driver, demo / "album.html")
        driver.save_screenshot(str(pictures / "album-page.png"))
        driver.execute_script("document.querySelector('#grid li[data-kind=changed] button').click()")
        driver.save_screenshot(str(pictures / "album-page-photo.png"))
        if train.is_dir():
            show(driver, train / "report.html")
            driver.save_screenshot(str(pictures / "demo-page.png"))
        show(driver, bench_page(Path(temporary) / "bench"), dark=True)
        driver.save_screenshot(str(pictures / "bench-page.png"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

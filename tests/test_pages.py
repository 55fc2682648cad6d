"""Pages in a real browser: keyboard, filter, both colour schemes, and axe-core finds nothing inaccessible."""

from __future__ import annotations

import os

import pytest

from tests import browser

pytest.importorskip("selenium", reason="needs selenium")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def driver():
    if not (browser.CHROMIUM and browser.DRIVER):
        assert not os.environ.get("REFOCUS_CI"), "chromium and chromium-driver are not installed"
        pytest.skip("needs Debian's chromium and chromium-driver")
    with browser.browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(bundle, stream, tmp_path_factory):
    from refocus.edge.recognize import answer_album, find_photos
    from refocus.edge.recognize.recognizer import Recognizer

    folder = tmp_path_factory.mktemp("pages")
    (folder / "photos").mkdir()
    for number, content in enumerate(stream[:12]):
        (folder / "photos" / f"{number:02d}.png").write_bytes(content)
    (folder / "photos" / "broken.png").write_bytes(stream[0][:200])
    with Recognizer(bundle, threads=1) as recognizer:
        answer_album(recognizer, find_photos([folder / "photos"]), folder / "album.html", workers=1)
    return {
        "album": folder / "album.html",
        "demo": browser.demo_page(folder / "demo.html"),
        "bench": browser.bench_page(folder / "bench"),
    }


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["album", "demo", "bench"])
def test_a_page_has_no_accessibility_violation(driver, pages, name, dark):
    browser.show(driver, pages[name], dark)
    assert browser.accessibility_violations(driver) == []


def test_an_album_can_be_used_by_keyboard(driver, pages):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser.show(driver, pages["album"])

    def press(key):
        ActionChains(driver).send_keys(key).perform()

    def focused():
        return driver.switch_to.active_element

    press("/")
    assert focused().get_attribute("id") == "words"
    press("05.png")
    assert driver.find_element("id", "count").text == "1 of 13 photos"
    press(Keys.BACKSPACE * 6)
    assert driver.find_element("id", "count").text == "13 of 13 photos"
    driver.execute_script("document.querySelector('#grid button').focus()")
    press(Keys.ARROW_RIGHT)
    assert focused().get_attribute("data-number") == "1"
    press(Keys.ENTER)
    assert driver.find_element("id", "name").text.endswith("01.png")
    assert browser.accessibility_violations(driver) == []
    press(Keys.ARROW_RIGHT)
    assert driver.find_element("id", "name").text.endswith("02.png")
    press(Keys.ESCAPE)
    assert not driver.find_element("id", "detail").is_displayed()
    assert focused().get_attribute("data-number") == "2"


def test_an_album_shows_photos_without_an_answer_alone(driver, pages):
    browser.show(driver, pages["album"])
    driver.execute_script("const k = document.getElementById('kind'); k.value = 'error'; k.onchange()")
    assert driver.find_element("id", "count").text == "1 of 13 photos"


def test_a_page_logs_no_error_and_asks_for_nothing(driver, pages):
    for page in pages.values():
        browser.show(driver, page)
        asked = driver.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
        assert [name for name in asked if not name.startswith("data:")] == []
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []

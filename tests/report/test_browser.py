"""The report in a real browser: it renders at three sizes, asks the network for nothing and logs no error."""

import json
import os
import shutil

import pytest

from veilset.report.page import write_report

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

SIZES = {"phone": (390, 844), "tablet": (820, 1180), "desktop": (1280, 900)}


@pytest.fixture(scope="module")
def browser():
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no Chromium: apt-get install chromium chromium-driver (scripts/test does it for root)")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    quiet = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *quiet):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()


@pytest.fixture
def page(releases, measured, tmp_path):
    path = tmp_path / "report.html"
    text = write_report(
        releases["dp"],
        evaluations=[measured["evaluation"], measured["paid"]],
        attacks=[measured["attack"]],
        audits=[measured["audit"]],
        internal=True,
    )
    path.write_text(text, encoding="utf-8")
    return path


def show(browser, page, size, scheme="light"):
    width, height = SIZES[size]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.get("about:blank")
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(page.as_uri())


def requests_of(browser):
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", list(SIZES))
def test_it_renders_alone(browser, page, size, scheme, tmp_path):
    show(browser, page, size, scheme)
    assert browser.get_log("browser") == []
    outside = [url for url in requests_of(browser) if not url.startswith(("data:", page.as_uri()))]
    assert outside == []
    wide = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert wide[0] <= wide[1]  # nothing makes the page scroll sideways
    loaded = "return [...document.images].every(i => i.complete && i.naturalWidth > 0) && document.images.length"
    assert browser.execute_script(loaded) > 3
    heights = browser.execute_script("return [...document.querySelectorAll('section')].map(s => s.offsetHeight)")
    assert min(heights) > 80
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(18, 22, 27)") == (scheme == "dark")
    shot = tmp_path / f"{size}-{scheme}.png"
    assert browser.save_screenshot(str(shot))
    assert shot.stat().st_size > 5_000


def test_every_detail_opens_by_keyboard(browser, page):
    from selenium.webdriver.common.keys import Keys

    show(browser, page, "desktop")
    for summary in browser.find_elements("tag name", "summary"):
        summary.send_keys(Keys.ENTER)
    assert all(d.get_attribute("open") for d in browser.find_elements("tag name", "details"))
    assert "certificate.json" in browser.find_element("tag name", "main").text


def test_it_prints(browser, page):
    show(browser, page, "desktop", "dark")
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(printed["data"]) > 20_000


@pytest.mark.skipif(not os.environ.get("CI") or os.geteuid() != 0, reason="only CI promises a browser")
def test_ci_has_a_browser():
    assert shutil.which("chromium")
    assert shutil.which("chromedriver")

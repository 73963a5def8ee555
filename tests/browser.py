"""A headless Chromium for tests, spoken to in the WebDriver protocol."""

import base64
import json
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager

import pytest
import requests

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="needs Chromium and its driver: apt-get install chromium chromium-driver",
)

PATIENCE = 60.0
SWITCHES = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


class Browser:
    """One window of a browser; what a page does with it is asked in JavaScript."""

    def __init__(self, address):
        self._address = address
        options = {"binary": CHROMIUM, "args": SWITCHES}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        opened = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{opened['sessionId']}"

    def open(self, path):
        """Load a file; complaints of earlier pages are forgotten."""
        self.complaints()
        self._post("/url", {"url": path.resolve().as_uri()})
        return self

    def run(self, script, *arguments):
        """What the script returns."""
        return self._post("/execute/sync", {"script": script, "args": arguments})

    def wait(self, condition, *arguments):
        """Wait until the expression is true; returns its value."""
        end = time.monotonic() + PATIENCE
        while not (found := self.run(f"return {condition}", *arguments)):
            assert time.monotonic() < end, f"waited in vain for {condition}"
            time.sleep(0.02)
        return found

    def drawn(self):
        """Wait until all charts are drawn."""
        self.wait("document.documentElement.dataset.charts === 'drawn'")
        return self

    def press(self, key):
        """Press and release a key where the focus is."""
        strokes = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        keyboard = {"type": "key", "id": "keyboard", "actions": strokes}
        self._post("/actions", {"actions": [keyboard]})

    def point(self, x, y):
        """Move the mouse there."""
        moves = [
            {"type": "pointerMove", "x": round(x) + shift, "y": round(y), "duration": 0}
            for shift in (-2, 0)
        ]
        mouse = {"type": "pointer", "id": "mouse", "actions": moves}
        self._post("/actions", {"actions": [mouse]})

    def size(self, width, height=900, *, mobile=False):
        """Make the window this large."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self.devtools("Emulation.setDeviceMetricsOverride", **metrics)

    def media(self, type="", scheme="light"):
        """Light or dark; always print, or on paper only."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", media=type, features=features)

    def complaints(self):
        """What the browser had to complain about since the last time it was asked."""
        return [
            entry["message"]
            for entry in self._post("/se/log", {"type": "browser"})
            if entry["level"] in ("SEVERE", "WARNING")
        ]

    def screenshot(self, path, *, whole=False):
        """The window, or the whole page, as a PNG."""
        options = {"captureBeyondViewport": whole}
        if whole:
            height = self.run("return document.documentElement.scrollHeight")
            width = self.run("return innerWidth")
            options["clip"] = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        taken = self.devtools("Page.captureScreenshot", **options)
        path.write_bytes(base64.b64decode(taken["data"]))

    def pdf(self):
        """The page as it would be printed."""
        return base64.b64decode(self.devtools("Page.printToPDF", printBackground=True)["data"])

    def devtools(self, command, **parameters):
        """A command of Chromium's own protocol."""
        return self._post("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def close(self):
        """End the session and its browser."""
        self._ask("DELETE", self._session)

    def _post(self, path, content):
        return self._ask("POST", f"{self._session}{path}", content)

    def _ask(self, kind, path, content=None):
        body = None if content is None else json.dumps(content)
        answer = requests.request(kind, f"{self._address}{path}", data=body, timeout=PATIENCE)
        value = answer.json()["value"]
        assert answer.ok, value["message"]
        return value


@contextmanager
def a_browser():
    """A driver with one browser, both gone afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    driver = subprocess.Popen(
        [DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(address, driver)
        browser = Browser(address)
        try:
            yield browser
        finally:
            browser.close()
    finally:
        driver.terminate()
        driver.wait()


def _wait_for(address, driver):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and driver.poll() is None:
        try:
            requests.get(f"{address}/status", timeout=1)
        except requests.ConnectionError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("the driver of Chromium did not start")

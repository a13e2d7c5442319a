"""A headless Chromium, driven over a pipe by its own protocol: nothing to install but the browser."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-dev-shm-usage", "--disable-sync", "--no-first-run", "--no-default-browser-check", "--hide-scrollbars",
    "--force-color-profile=srgb", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE = 60.0  # seconds for an answer, on a busy machine


def find_browser() -> str | None:
    return os.environ.get("CARL_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def browser(executable: str) -> Iterator[Browser]:
    """A browser with an empty profile of its own; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="carl-browser-", ignore_cleanup_errors=True) as profile:
        running = Browser(executable, profile)
        try:
            yield running
        finally:
            running.close()


class Browser:
    """Commands go to the browser's descriptor 3, answers come from its 4, each ended by a zero byte."""

    def __init__(self, executable: str, profile: str) -> None:
        (theirs_in, self._to), (self._from, theirs_out) = _high_pipe(), _high_pipe()
        null = os.open(os.devnull, os.O_RDWR)
        actions = [(os.POSIX_SPAWN_DUP2, a, b) for a, b in ((null, 1), (null, 2), (theirs_in, 3), (theirs_out, 4))]
        command = [executable, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = os.posix_spawn(executable, command, os.environ, file_actions=actions, setsid=True)
        for descriptor in (theirs_in, theirs_out, null):
            os.close(descriptor)
        self._rest, self._number = b"", 0
        self.events: list[dict[str, Any]] = []

    def page(self, width: int = 1200, height: int = 900) -> Page:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Page(self, target, session, width, height)

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"the browser did not answer within {PATIENCE:g} s")
            part = os.read(self._from, 1 << 20)
            if not part:
                raise RuntimeError("the browser has gone")
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def close(self) -> None:
        for descriptor in (self._to, self._from):
            os.close(descriptor)
        os.killpg(self._process, signal.SIGKILL)  # its own session: the browser and its children alone
        os.waitpid(self._process, 0)


class Page:
    """One tab: what a person does in it, and what it said and asked for."""

    def __init__(self, owner: Browser, target: str, session: str, width: int, height: int) -> None:
        self._owner, self._target, self._session = owner, target, session
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._owner.call(method, self._session, **parameters)

    def resize(self, width: int, height: int, scale: float = 1.0) -> None:
        narrow = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=narrow
        )

    def prefer(self, scheme: str = "", media: str = "") -> None:
        self.call(
            "Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}]
        )

    def open(self, file: Path) -> None:
        self.call("Page.navigate", url=file.resolve().as_uri())
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")
        self.settle()

    def open_address(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.wait(f"document.readyState === 'complete' && location.href === {json.dumps(address)}")
        self.settle()

    def save_into(self, folder: Path) -> None:
        """Where downloads go."""
        self._owner.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))

    def drag(self, points: list[tuple[float, float]], touch: bool = False) -> None:
        """Press at the first point, move over the others, let go; with a mouse or a finger."""
        if touch:
            self.call("Emulation.setTouchEmulationEnabled", enabled=True)
            kinds = ["touchStart", *["touchMove"] * (len(points) - 1)]
            for kind, (x, y) in zip(kinds, points, strict=True):
                self.call("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": x, "y": y}])
            self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        else:
            self.mouse("mouseMoved", *points[0])
            self.mouse("mousePressed", *points[0], button="left", clickCount=1)
            for point in points[1:]:
                self.mouse("mouseMoved", *point, button="left", buttons=1)
            self.mouse("mouseReleased", *points[-1], button="left", clickCount=1)
        self.settle()

    def type(self, text: str) -> None:
        """Into what has the focus."""
        self.call("Input.insertText", text=text)
        self.settle()

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"].get("exception", {}).get("description", script))
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self.run(condition):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true: {condition}")
            time.sleep(0.05)

    def settle(self) -> None:
        """Until what was asked for is painted; a tab behind another is not, so do not wait for ever."""
        painted = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
        self.run(f"Promise.race([{painted}, new Promise(done => setTimeout(done, 500))])")

    def box(self, selector: str) -> dict[str, float]:
        """Where an element is on the screen, after it was brought there."""
        found: dict[str, float] = self.run(
            f"(() => {{ const node = document.querySelector({json.dumps(selector)});"
            "node.scrollIntoView({block: 'center', behavior: 'instant'}); const box = node.getBoundingClientRect();"
            "return {x: box.x, y: box.y, width: box.width, height: box.height}; })()"
        )
        return found

    def click(self, selector: str) -> None:
        box = self.box(selector)
        self.click_at(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    def click_at(self, x: float, y: float) -> None:
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, button="left", clickCount=1)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)
        self.settle()

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def press(self, key: str) -> None:
        codes = {
            " ": 32,
            "Enter": 13,
            "Tab": 9,
            "Escape": 27,
            "ArrowLeft": 37,
            "ArrowUp": 38,
            "ArrowRight": 39,
            "ArrowDown": 40,
        }
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        for kind in ("keyDown", "keyUp"):
            code = codes.get(key, 0)
            typed = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **typed)
        self.settle()

    def screenshot(self, file: Path, selector: str = "html", margin: int = 0, height: float | None = None) -> None:
        """An element, by default the whole page, as PNG, with a margin beside and below it; `height` cuts it off."""
        if selector != "html":
            self.box(selector)
        box = self.run(
            f"(() => {{ const box = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            "return {x: box.x + scrollX, y: box.y + scrollY, width: box.width, height: box.height}; })()"
        )
        clip = {
            "x": max(0, box["x"] - margin), "y": box["y"], "scale": 1,
            "width": box["width"] + 2 * margin, "height": height or box["height"] + margin,
        }  # fmt: skip
        self.settle()
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self, file: Path) -> None:
        answer = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        file.write_bytes(base64.b64decode(answer["data"]))

    def complaints(self) -> list[str]:
        """Errors and warnings on the console, and exceptions."""
        found = []
        for event in self._own_events():
            kind, said = event["method"], event["params"]
            if kind == "Runtime.exceptionThrown":
                details = said["exceptionDetails"]
                found.append(details.get("exception", {}).get("description", details["text"]))
            elif kind == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
                found.append(str(said["args"]))
            elif kind == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
                found.append(said["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """Addresses that the page asked for beyond its own file and what is inside it."""
        asked = [
            e["params"]["request"]["url"] for e in self._own_events() if e["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in asked if not url.startswith(("data:", "file:", "about:", "blob:"))]

    def close(self) -> None:
        self._owner.call("Target.closeTarget", targetId=self._target)

    def _own_events(self) -> list[dict[str, Any]]:
        self.settle()  # so that what was said has arrived
        return [event for event in self._owner.events if event.get("sessionId") == self._session]


def _high_pipe() -> tuple[int, int]:
    """A pipe whose ends are not among the descriptors that the browser gets."""
    ends = []
    for end in os.pipe():
        ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 16))
        os.close(end)
    return ends[0], ends[1]

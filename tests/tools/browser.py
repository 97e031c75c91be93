"""A headless Chromium that a test asks through a pipe: no port, no network."""
import json
import os
import shutil
import subprocess
import tempfile

NAMES = ("chromium-headless-shell", "chromium", "chromium-shell", "google-chrome")
BROWSER = next((path for path in map(shutil.which, NAMES) if path), None)
MISSING = f"needs one of {', '.join(NAMES)}, which this machine has not"


class Browser:
    """One page. It notes each request and each error of a script."""

    def __init__(self):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # its helpers may still write
        down, self.to = os.pipe()
        self.back, up = os.pipe()
        command = f'exec "$@" 3<&{down} 4>&{up}'
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--remote-debugging-pipe",
                 f"--user-data-dir={self.profile.name}"]
        self.process = subprocess.Popen(["bash", "-c", command, "browser", BROWSER, *flags], pass_fds=(down, up),
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(down)
        os.close(up)
        self.number, self.rest, self.session = 0, b"", None
        self.requests, self.errors, self.is_loaded = [], [], False
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def close(self):
        self.session = None
        self.ask("Browser.close")
        self.process.wait()
        os.close(self.to)
        os.close(self.back)
        self.profile.cleanup()

    def message(self):
        while b"\0" not in self.rest:
            more = os.read(self.back, 1 << 16)
            if not more:
                raise RuntimeError("the browser has ended")
            self.rest += more
        one, _, self.rest = self.rest.partition(b"\0")
        told = json.loads(one)
        self.note(told.get("method"), told.get("params", {}))
        return told

    def note(self, method, found):
        if method == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])
        elif method == "Page.loadEventFired":
            self.is_loaded = True
        elif method == "Runtime.exceptionThrown":
            self.errors.append(found["exceptionDetails"])
        elif method == "Log.entryAdded" and found["entry"]["level"] == "error":
            self.errors.append(found["entry"])
        elif method == "Runtime.consoleAPICalled" and found["type"] == "error":
            self.errors.append(found["args"])

    def ask(self, method, **params):
        self.number += 1
        request = {"id": self.number, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.to, json.dumps(request).encode() + b"\0")
        while True:
            told = self.message()
            if told.get("id") == self.number:
                if "error" in told:
                    raise RuntimeError(f"{method}: {told['error']}")
                return told["result"]

    def open(self, path, width=1200, dark=False):
        """Loads the file, and waits until it is shown."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 700)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.requests, self.errors, self.is_loaded = [], [], False
        self.ask("Page.navigate", url=path.as_uri())
        while not self.is_loaded:
            self.message()

    def value(self, script):
        """What the expression is, as JSON has it; errors of it are raised."""
        told = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            raise RuntimeError(told["exceptionDetails"])
        return told["result"].get("value")

    def point(self, x, y):
        """With the mouse, on the page."""
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def tap(self, x, y):
        """With a finger."""
        self.ask("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.ask("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, key):
        for kind in ("rawKeyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key)

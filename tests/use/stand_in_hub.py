"""A stand-in for the Hugging Face hub on this machine: it takes uploads, and gives back what it took."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_standin"


class StandInHub(ThreadingHTTPServer):
    """What was created, and the files of each repository."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.created: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}  # by USER/NAME/FILE
        self.large: dict[str, bytes] = {}  # by their hash, until a commit names them

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    """The few requests that an upload and a download are made of."""

    server: StandInHub

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        content = b""
        while length := int(self.rfile.readline(), 16):
            content += self.rfile.read(length)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def answer(self, value: object = None, status: int = 200, content: bytes | None = None, **headers: str) -> None:
        content = json.dumps(value or {}).encode() if content is None else content
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_POST(self) -> None:
        body = self.body()
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer({"error": "Invalid username or password."}, 401)
        if self.path == "/api/repos/create":
            wanted = json.loads(body)
            self.server.created.append(wanted)
            return self.answer({"url": f"{self.server.address}/{wanted['organization']}/{wanted['name']}"})
        if self.path == "/api/validate-yaml":
            wrong = [] if json.loads(body)["content"].startswith("---\n") else [{"message": "no front matter"}]
            return self.answer({"errors": wrong, "warnings": []}, 400 if wrong else 200)
        if "/preupload/" in self.path:
            named = [one["path"] for one in json.loads(body)["files"]]
            kinds = {name: "lfs" if name.endswith(".safetensors") else "regular" for name in named}
            found = [{"path": name, "uploadMode": kind, "shouldIgnore": False} for name, kind in kinds.items()]
            return self.answer({"files": found})
        if self.path.endswith("/info/lfs/objects/batch"):
            wanted = json.loads(body)["objects"]
            found = [one | {"actions": {"upload": {"href": f"{self.server.address}/put"}}} for one in wanted]
            return self.answer({"transfer": "basic", "objects": found})
        if "/commit/" in self.path:
            named = self.path.removeprefix("/api/models/").partition("/commit/")[0]
            self.take(named, body)
            return self.answer({"commitUrl": f"{self.server.address}/{named}/commit/{COMMIT}", "commitOid": COMMIT})
        return self.answer({"error": f"unknown {self.path}"}, 404)

    def take(self, repository: str, body: bytes) -> None:
        for line in body.splitlines():
            record = json.loads(line)
            value = record["value"]
            if record["key"] == "file":
                self.server.files[f"{repository}/{value['path']}"] = base64.b64decode(value["content"])
            elif record["key"] == "lfsFile":
                self.server.files[f"{repository}/{value['path']}"] = self.server.large[value["oid"]]

    def do_PUT(self) -> None:
        content = self.body()
        self.server.large[hashlib.sha256(content).hexdigest()] = content
        self.answer()

    def do_GET(self) -> None:
        name = self.path.lstrip("/").replace("/resolve/main/", "/").replace(f"/resolve/{COMMIT}/", "/")
        if name not in self.server.files:
            known = any(file.startswith(f"{name}/") for file in self.server.files)
            return self.answer({"error": "not found"}, 200 if known else 404)
        content = self.server.files[name]
        return self.answer(content=content, ETag=f'"{hashlib.sha1(content).hexdigest()}"', X_Repo_Commit=COMMIT)

    do_HEAD = do_GET


@contextmanager
def stand_in_hub() -> Iterator[StandInHub]:
    with StandInHub() as hub:
        Thread(target=hub.serve_forever, daemon=True).start()
        try:
            yield hub
        finally:
            hub.shutdown()

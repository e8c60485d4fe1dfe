"""A hub on this machine with one data set, for the libraries that speak to the real one."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME = "someone/numbers"
_COMMIT = "0" * 40


@contextlib.contextmanager
def serving(files: dict[str, bytes]) -> Iterator[str]:
    """The address of a hub that has `NAME` with these files, and nothing else."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            file = path.rpartition("/")[2]
            if path == f"/datasets/{NAME}/resolve/{_COMMIT}/{file}" and file in files:
                self._answer(200, files[file], ETag=f'"{file}"')
            elif path == f"/api/datasets/{NAME}/tree/{_COMMIT}":
                sizes = {name: len(content) for name, content in files.items()}
                tree = [{"type": "file", "path": name, "size": sizes[name], "oid": name} for name in files]
                self._answer(200, json.dumps(tree).encode())
            elif path in (f"/api/datasets/{NAME}", f"/api/datasets/{NAME}/revision/{_COMMIT}"):
                siblings = [{"rfilename": name} for name in files]
                self._answer(200, json.dumps({"id": NAME, "sha": _COMMIT, "siblings": siblings}).encode())
            else:
                self._answer(404, b"{}", **{"X-Error-Code": "EntryNotFound"})

        def do_HEAD(self) -> None:
            self.do_GET()

        def _answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            sent = {"Content-Type": "application/json", "Content-Length": str(len(body)), "X-Repo-Commit": _COMMIT}
            for name, value in {**sent, **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()

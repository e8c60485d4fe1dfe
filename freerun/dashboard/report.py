"""The page of a run as one HTML file, to keep or send: it needs neither a server nor a network.

    index.html ─► scripts and styles embedded, modules joined ─► packed answers of the feeds ─► one file

The security policy that the server sends as a header is a `<meta>` tag here, with the hashes of these scripts
and styles. The data is gzip in base64 in a script element that is only text: nothing that a model wrote can
close the tag or be executed. `static/data.js` unpacks it, and uses it instead of asking a server.
"""

import base64
import gzip
import hashlib
import re
from pathlib import Path

import msgspec

from freerun.dashboard.feeds import report_answers
from freerun.dashboard.page_files import PAGE_LIBRARIES, STYLE_SHEETS, joined_modules
from freerun.dashboard.source import Source
from freerun.dashboard.static_files import STATIC

DATA_ID = "data"
_LINKED = re.compile(r"<link\b[^>]*stylesheet[^>]*>\n?|<script\b[^>]*\bsrc=[^>]*></script>\n?")


def make_report(run: Path) -> str:
    """The report of a running, ended or crashed run."""
    source = Source(run)
    try:
        return page_with(report_answers(source))
    finally:
        source.close()


def page_with(answers: object) -> str:
    """The page with these answers embedded."""
    styles = [_text_of(name) for name in STYLE_SHEETS]
    libraries = [_text_of(name) for name in PAGE_LIBRARIES]
    modules = joined_modules()
    packed = base64.b64encode(gzip.compress(msgspec.json.encode(answers), 9, mtime=0)).decode()
    head = [
        _policy(scripts=[*libraries, modules], styles=styles),
        *(f"<style>{style}</style>" for style in styles),
    ]
    body = [
        f'<script type="text/plain" id="{DATA_ID}">{packed}</script>',
        *(f"<script>{library}</script>" for library in libraries),
        f'<script type="module">{modules}</script>',
    ]
    page = _LINKED.sub("", _text_of("index.html"))
    return page.replace("</head>", "".join(head) + "</head>").replace("</body>", "".join(body) + "</body>")


def _text_of(name: str) -> str:
    return (STATIC / name).read_text()


def _policy(*, scripts: list[str], styles: list[str]) -> str:
    rules = (
        "default-src 'none'",
        f"script-src {' '.join(map(_digest, scripts))}",
        f"style-src {' '.join(map(_digest, styles))}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
    policy = "; ".join(rules)
    return f'<meta http-equiv="Content-Security-Policy" content="{policy}">'


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

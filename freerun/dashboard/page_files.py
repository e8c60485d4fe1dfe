"""The files of the page, in the order in which they are joined.

Each module imports only from modules before it, with `import { ... } from "./name.js";` on one line, and no two
have a top-level name in common. So joined in this order, without their imports and the word `export`, they are
one module. A report embeds it, and the server sends it: one request instead of fifteen in three rounds. There
is no build step. The two libraries are classic scripts that come first: they define `uPlot` and `htmPreact`.
"""

import re

from freerun.dashboard.static_files import STATIC

PAGE_LIBRARIES = ("vendor/uplot.js", "vendor/preact.js")
PAGE_MODULES = (
    "view.js", "data.js", "format.js", "shapes.js", "chart.js", "tokens.js", "svg.js", "timeline.js",
    "run.js", "time.js", "other_samples.js", "samples.js", "learning.js", "paired.js", "runs.js", "app.js",
)  # fmt: skip
STYLE_SHEETS = ("vendor/uplot.css", "style.css")
VENDOR_SHA256 = {
    "htm.LICENSE": "740725f7252e750af735d0028cc534970772f513331e9f68150fede8fb3ce00f",
    "preact.LICENSE": "1fe6958409c8c257a70c587a18b6f7f412b179b456630790d30b2ec9a8e4b7d4",
    "preact.js": "62c4ffea400078c0eda7f435b22726b4961ebdf74c8506f188e92bec41d8ac51",
    "uplot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
}
"""Hashes of the unchanged files in `static/vendor`: uPlot 1.6.32 (MIT), its `dist/uPlot.iife.min.js` and
`uPlot.min.css`; preact (MIT) with htm (Apache-2.0), the `preact/standalone.umd.js` of htm 3.1.1.
"""

_IMPORT = re.compile(r"^import\b.*$", re.MULTILINE)
_EXPORT = re.compile(r"^export (?:default )?", re.MULTILINE)


def joined_modules() -> str:
    """All modules joined to one, without imports and exports."""
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", (STATIC / name).read_text())) for name in PAGE_MODULES)

"""The files of the page: what is vendored is what was published, and the modules join into one script."""

import hashlib
import re
from pathlib import Path

import pytest

import freerun.dashboard
from freerun.dashboard.page_files import PAGE_LIBRARIES, PAGE_MODULES, STYLE_SHEETS, VENDOR_SHA256

STATIC = Path(freerun.dashboard.__file__).parent / "static"
DEFINED = re.compile(r"^(?:export )?(?:async )?(?:function|const|let|class) +([\w$]+)", re.MULTILINE)
TAKEN_APART = re.compile(r"^(?:export )?const \{([^}]*)\}", re.MULTILINE)
IMPORT = re.compile(r'^import \{ ([^}]*) \} from "\./(\w+\.js)";$', re.MULTILINE)
FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|dangerouslySetInnerHTML|"
    r"setAttribute\(\s*[\"']style|https?://|localStorage|javascript:"
)


def text_of(name: str) -> str:
    return (STATIC / name).read_text()


def names_of(module: str) -> list[str]:
    text = text_of(module)
    apart = [name.strip() for names in TAKEN_APART.findall(text) for name in names.split(",")]
    return [*DEFINED.findall(text), *apart]


def test_vendored_files_are_those_that_were_published() -> None:
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (STATIC / "vendor").iterdir()
        if path.is_file()
    }
    assert found == VENDOR_SHA256


def test_no_two_modules_have_a_name_in_common() -> None:
    names = [name for module in PAGE_MODULES for name in names_of(module)]
    assert len(names) > 100
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_each_module_imports_only_what_modules_before_it_have() -> None:
    for i, module in enumerate(PAGE_MODULES):
        text = text_of(module)
        assert text.count("\nimport ") + text.startswith("import ") == len(IMPORT.findall(text)), module
        for names, origin in IMPORT.findall(text):
            assert origin in PAGE_MODULES[:i], f"{module} imports {origin}"
            assert set(names.split(", ")) <= set(names_of(origin)), f"{module} imports {names} from {origin}"


def test_every_file_of_the_page_is_known_by_name() -> None:
    on_disk = {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.suffix in (".js", ".css")}
    assert on_disk == {*PAGE_LIBRARIES, *PAGE_MODULES, *STYLE_SHEETS}
    index = text_of("index.html")
    for name in (*PAGE_LIBRARIES, *STYLE_SHEETS):
        assert f'"static/{name}"' in index
    assert '"page.js"' in index


@pytest.mark.parametrize("name", [*PAGE_MODULES, "index.html", "style.css"])
def test_the_page_makes_no_html_of_text_and_names_no_host(name: str) -> None:
    assert FORBIDDEN.findall(text_of(name)) == []


def test_the_page_has_no_inline_script_or_style() -> None:
    index = text_of("index.html")
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=", index) == []

"""Who gets an answer from the page: every route, token, name, place and method."""

import itertools

import pytest
from served_pages import TOKEN, ServedPage

from freerun.dashboard.access import POLICY, SECURITY_HEADERS
from freerun.dashboard.feeds import FEEDS
from freerun.dashboard.static_files import static_files

ROUTES = ["/", "/page.js", "/metrics", "/api/run", "/api/runs", "/static/index.html"]
TOKENS = {"none": None, "empty": "", "wrong": "wrong-token", "near": TOKEN[:-1], "right": TOKEN}
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW")
OWN_PLACES: list[dict[str, str]] = [
    {},
    {"Host": "localhost:1234"},
    {"Host": "[::1]:6161"},
    {"Host": "LOCALHOST"},
    {"Host": "lab.example"},
    {"Host": "localhost:99", "Origin": "http://localhost:99", "Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "none"},
]
FOREIGN_PLACES: list[dict[str, str]] = [
    {"Host": "evil.example"},
    {"Host": "127.0.0.1.evil.example"},
    {"Host": "evil.example:6161"},
    {"Host": "127.0.0.1@evil.example"},
    {"Host": "lab.example.evil.example"},
    {"Host": "127.0.0.1:port"},
    {"Host": "127.1"},
    {"Host": "0.0.0.0"},
    {"Host": ""},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "file://"},
    {"Origin": "http://[broken"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "nonsense"},
]


@pytest.mark.parametrize("route", ROUTES)
def test_only_the_right_token_from_the_right_place_with_a_reading_method_is_answered(
    page: ServedPage, route: str
) -> None:
    for (kind, token), method in itertools.product(TOKENS.items(), METHODS):
        for place in OWN_PLACES if method in ("GET", "POST") else OWN_PLACES[:1]:
            is_right = kind == "right" and method in ("GET", "HEAD")
            status = page.ask(route, place, method=method, token=token).status
            assert (status == 200) == is_right, f"{method} {route} with {kind} token and {place}: {status}"
            assert is_right or status in (401, 405), f"{method} {route} with {kind} token and {place}: {status}"


@pytest.mark.parametrize("place", FOREIGN_PLACES, ids=str)
def test_no_other_place_is_answered_by_any_route(page: ServedPage, place: dict[str, str]) -> None:
    for route, method in itertools.product([*ROUTES, "/stream", "/?token=" + TOKEN], METHODS):
        for token in (None, "wrong-token", TOKEN):
            status = page.ask(route, place, method=method, token=token).status
            assert status == 403, f"{method} {route} with {place} and token {token}: {status}"


def test_every_feed_and_file_needs_the_token_and_a_reading_method(page: ServedPage) -> None:
    routes = [f"/api/{name}" for name in FEEDS] + [f"/static/{name}" for name in static_files()]
    for route in [*routes, "/page.js", "/stream", "/metrics", "/nothing", "/static/../server.py"]:
        for method in METHODS:
            refused = {page.ask(route, method=method, token=token).status for token in (None, "wrong-token")}
            assert refused <= {401, 405}, f"{method} {route}: {refused}"
        for method in set(METHODS) - {"GET", "HEAD"}:
            assert page.ask(route, method=method).status == 405, f"{method} {route}"
        assert page.ask(f"{route}?token={TOKEN}", token=None).status == 401, (
            f"{route}: only the link's page exchanges"
        )


def test_a_host_that_is_sent_twice_is_refused(page: ServedPage) -> None:
    with page.connect() as connection:
        head = ("GET /metrics HTTP/1.1", "Host: localhost", "Host: evil.example", f"Authorization: Bearer {TOKEN}")
        connection.sendall("\r\n".join([*head, "", ""]).encode())
        assert connection.recv(100).split()[1] in (b"400", b"403")


def test_the_link_is_exchanged_for_a_cookie_and_leads_away_from_the_token(page: ServedPage) -> None:
    reply = page.ask(f"/?token={TOKEN}", token=None)
    assert reply.status == 303
    assert reply.header("location") == "/"
    assert reply.header("set-cookie") == f"freerun-{page.port}={TOKEN}; Path=/; HttpOnly; SameSite=Strict"
    assert page.ask("/?token=wrong", token=None).status == 401


def test_prometheus_sends_the_token_as_a_bearer(page: ServedPage) -> None:
    right, wrong = ({"Authorization": f"Bearer {token}"} for token in (TOKEN, "wrong"))
    assert page.ask("/metrics", right, token=None).status == 200
    assert page.ask("/metrics", wrong, token=None).status == 401
    assert page.ask("/metrics", {"Authorization": f"Basic {TOKEN}"}, token=None).status == 401


def test_every_answer_has_the_security_headers(page: ServedPage) -> None:
    asked = [
        page.ask(path, headers, method=method, token=token)
        for path in [
            *ROUTES,
            *(f"/api/{name}" for name in FEEDS),
            "/nothing",
            "/api/nothing",
            "/static/nothing",
            "/?token=x",
        ]
        for method, token, headers in (
            ("GET", TOKEN, {}),
            ("HEAD", TOKEN, {}),
            ("POST", TOKEN, {}),
            ("GET", None, {}),
            ("GET", TOKEN, {"Host": "evil.example"}),
            ("GET", TOKEN, {"X-Long": "x" * 9000}),
        )
    ]
    assert {reply.status for reply in asked} >= {200, 401, 403, 404, 405, 431}
    for reply in asked:
        for name, value in SECURITY_HEADERS.items():
            assert reply.header(name) == value
        assert reply.header("cache-control") in ("no-store", "no-cache")
        assert not [name for name, _ in reply.headers if name.lower() in ("server", "access-control-allow-origin")]


def test_data_is_never_stored_and_always_json(page: ServedPage) -> None:
    for name in FEEDS:
        reply = page.ask(f"/api/{name}")
        assert reply.header("cache-control") == "no-store"
        assert reply.header("content-type") == "application/json"


def test_the_policy_allows_our_files_and_no_html_from_strings() -> None:
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert rules["trusted-types"] == rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    assert "unsafe" not in POLICY

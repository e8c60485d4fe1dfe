"""Who may see the page, and what a browser may do with it.

The page is for the user who has the link. Others are kept out in these ways:

- another web page in the same browser: it must use one of our names (`Host`), so a name that its owner points at
  127.0.0.1 is refused, and a browser reports where a request comes from (`Origin`, `Sec-Fetch-Site`);
- another user of the same machine, who can reach the port: only the link contains the token. The token is
  exchanged for a cookie at once, so that it does not stay in the address bar;
- text that a model wrote: the headers allow only our scripts and styles, and no HTML made from strings.

The page changes nothing: it answers only GET and HEAD.
"""

import hmac
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request

NAMES_OF_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
PAGE_METHODS = ("GET", "HEAD")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
"""Headers of every answer."""


@dataclass(frozen=True)
class Denial:
    """Why a request is refused."""

    status: int
    reason: str


class Access:
    """The rules for one page: its token, its port, and its allowed host names."""

    def __init__(self, token: str, *, port: int, hosts: tuple[str, ...] = ()) -> None:
        self._token = token
        self._hosts = NAMES_OF_LOOPBACK | {host.lower() for host in hosts}
        self.cookie_name = f"freerun-{port}"
        """The port is part of the name because cookies are shared by all ports of a host."""

    def deny(self, request: Request) -> Denial | None:
        """Why the request is refused; None if it may be answered."""
        return (
            _wrong_place(request.headers, self._hosts) or _wrong_method(request.method) or self._stranger(request)
        )

    def is_exchange(self, request: Request) -> bool:
        """Whether an admitted request has the token in its URL, to be exchanged for a cookie."""
        return self._is_token(request.query_params.get("token", ""))

    @property
    def cookie(self) -> str:
        return f"{self.cookie_name}={self._token}; Path=/; HttpOnly; SameSite=Strict"

    def _stranger(self, request: Request) -> Denial | None:
        given = [self._cookie_of(request.headers), _bearer_of(request.headers)]
        if request.url.path == "/":
            given.append(request.query_params.get("token", ""))
        if any(self._is_token(token) for token in given):
            return None
        return Denial(401, 'the token is missing or wrong: open the link that "freerun view RUN" prints')

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self._token.encode())

    def _cookie_of(self, headers: Headers) -> str:
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self.cookie_name)
        except CookieError:
            return ""
        return morsel.value if morsel else ""


def _bearer_of(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _wrong_method(method: str) -> Denial | None:
    return (
        None
        if method in PAGE_METHODS
        else Denial(405, f"the page changes nothing: it answers {' and '.join(PAGE_METHODS)}")
    )


def _wrong_place(headers: Headers, hosts: frozenset[str]) -> Denial | None:
    """Check the host name; any port is accepted, because a tunnel may use another one than the page."""
    host = headers.get("host", "")
    if len(headers.getlist("host")) != 1 or _name_of(host) not in hosts:
        return Denial(403, 'the page is not served under this name; add it to page.hosts, or use "127.0.0.1"')
    origins = headers.getlist("origin")
    if any(urlsplit_or_none(origin) != host.lower() for origin in origins):
        return Denial(403, "another web page may not ask for this one")
    if any(site not in ("same-origin", "none") for site in headers.getlist("sec-fetch-site")):
        return Denial(403, "another web page may not ask for this one")
    return None


def _name_of(host: str) -> str:
    """The name in a `Host` header, without its port; empty if it is invalid."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # raises if it is not a number
    except ValueError:
        return ""
    return (parts.hostname or "") if parts.netloc == host and "@" not in host else ""


def urlsplit_or_none(origin: str) -> str | None:
    """Host and port of an origin; None if it is not the origin of a web page."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return parts.netloc.lower() if parts.scheme in ("http", "https") else None

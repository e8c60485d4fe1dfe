"""The page of a run: what people see of it in a browser (`docs/page.md`)."""

import re
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from freerun.config.section import Section, require

DEFAULT_PORT = 6161


@dataclass(frozen=True)
class PageConfig(Section, name="page"):
    serve: bool = True
    """Serve the run's page while it runs; its process starts when the page is opened."""
    host: str = "127.0.0.1"
    """Where it listens. Any address but loopback can be reached from other machines, without encryption."""
    port: Annotated[int, Meta(ge=0, le=65535)] = DEFAULT_PORT
    """The next free port is taken if another program has this one; 0 takes any."""
    hosts: tuple[str, ...] = ()
    """Names in addition to localhost under which browsers may ask for the page, without ports."""

    def check(self) -> None:
        for key, names in (("host", (self.host,)), ("hosts", self.hosts)):
            for name in names:
                require(
                    re.fullmatch(r"[A-Za-z0-9_.:-]+", name) is not None,
                    f'page.{key}: "{name}" is not the name or the address of a machine, such as 127.0.0.1',
                )

"""Messages between a run and the process of its page."""

import msgspec


class ServePage(msgspec.Struct, frozen=True, tag=True):
    """Serve a run from now on."""

    run_directory: str
    listener: int
    """The descriptor of the listening socket, which is inherited."""
    port: int
    hosts: tuple[str, ...]
    token: str


class LastLook(msgspec.Struct, frozen=True, tag=True):
    """The run is over and all of it is in the store: show it to those who watch, and end."""


ToPage = ServePage | LastLook


class PageEnded(msgspec.Struct, frozen=True, tag=True):
    """The page ends by itself."""


FromPage = PageEnded

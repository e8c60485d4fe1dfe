"""Messages between a run and its page process."""

import msgspec


class ServePage(msgspec.Struct, frozen=True, tag=True):
    """Serve a run from now on."""

    run_directory: str
    listener: int
    """The file descriptor of the listening socket, which the process inherits."""
    port: int
    hosts: tuple[str, ...]
    token: str


class LastLook(msgspec.Struct, frozen=True, tag=True):
    """The run is over and fully stored: show its end to connected browsers, then exit."""


ToPage = ServePage | LastLook


class PageEnded(msgspec.Struct, frozen=True, tag=True):
    """The page process ends on its own."""


FromPage = PageEnded

"""Turns a Python function into a tool: its JSON schema for the policy, and the policy's JSON into its arguments.

    def weather(city: str, days: int = 1) -> str:      {"name": "weather", "parameters": {"properties":
        '''Look up the weather.'''                ──►      {"city": {"type": "string"}, "days": ...}, ...}}

The annotations define the schema, so a parameter without one is refused before the run starts. Types are those
that msgspec can read from JSON: str, int, float, bool, list, dict, Literal, unions, dataclasses and more. The
policy's values are converted where that is unambiguous: "3" is 3 for an int.
"""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from freerun.chat.messages import Tool
from freerun.errors import ConfigError
from freerun.rollout.tool_docs import ToolDocs, read_docs

_ARGUMENTS = "Arguments"


class ArgumentsError(ValueError):
    """Arguments that do not fit the tool; the message is written for the policy."""


def read_tool(function: Callable[..., Any]) -> tuple[Tool, type[msgspec.Struct]]:
    """The tool that describes a function, and the type of its arguments."""
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise ConfigError(f"the tool {function!r:.200} has no name; define it with def")
    parameters = _parameters(name, function)
    docs = read_docs(function, parameters)
    arguments = _arguments_type(name, parameters, _types(name, function, parameters), docs)
    return Tool(name=name, description=docs.description, parameters=_schema(name, arguments)), arguments


def _parameters(name: str, function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        parameters = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f'the tool "{name}" has no signature to read ({error}); wrap it in a function'
        ) from error
    for parameter in parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(
                f'the tool "{name}" takes "{parameter}", which no schema can describe; the policy passes '
                "arguments by name, so give each its own parameter"
            )
    return parameters


def _types(name: str, function: Callable[..., Any], parameters: dict[str, inspect.Parameter]) -> dict[str, Any]:
    """The annotation of each parameter."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        raise ConfigError(f'the annotations of the tool "{name}" cannot be read: {error}; fix them') from error
    for parameter in parameters:
        if parameter not in hints:
            raise ConfigError(
                f'the tool "{name}" has no type for its parameter "{parameter}", so the policy cannot be told '
                f"what to pass; annotate it, such as def {name}({parameter}: str)"
            )
    return hints


def _arguments_type(
    name: str, parameters: dict[str, inspect.Parameter], types: dict[str, Any], docs: ToolDocs
) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for parameter in parameters.values():
        hint = _described(types[parameter.name], docs.parameters.get(parameter.name, ""))
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint, _default(parameter.default)))
    try:
        return msgspec.defstruct(_ARGUMENTS, fields, kw_only=True, forbid_unknown_fields=True)
    except (TypeError, ValueError) as error:
        raise ConfigError(f'the tool "{name}" cannot be described: {error}; rename its parameters') from error


def _default(value: Any) -> Any:
    """The default of a field: msgspec takes a mutable one, such as a list, only as a factory."""
    is_plain = value is None or isinstance(value, bool | int | float | str)
    return value if is_plain else msgspec.field(default_factory=lambda: value)


def _described(hint: Any, text: str) -> Any:
    """The type with its description, from the docstring or from a string in Annotated."""
    notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    text = text or next((note for note in notes if isinstance(note, str)), "")
    return Annotated[hint, msgspec.Meta(description=text)] if text else hint


def _schema(name: str, arguments: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON schema of the arguments, without parts that would only cost the policy's tokens."""
    try:
        _, components = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
        msgspec.json.Decoder(arguments)
    except TypeError as error:
        raise ConfigError(
            f'the tool "{name}" has a parameter of a type that JSON cannot hold ({str(error).splitlines()[-1]}); '
            "use str, int, float, bool, list, dict, Literal or a dataclass"
        ) from error
    own = components.pop(_ARGUMENTS)
    schema = {"type": "object", "properties": own["properties"], "required": own["required"]}
    return schema | ({"$defs": components} if components else {})


def read_arguments(arguments: str, expected: type[msgspec.Struct]) -> dict[str, Any]:
    """The arguments by name, converted to the expected types."""
    try:
        read = msgspec.json.decode(arguments.strip() or "{}", type=expected, strict=False)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise ArgumentsError(str(error)) from None
    return {name: getattr(read, name) for name in expected.__struct_fields__}

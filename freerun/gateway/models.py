"""`/v1/models`: lists the policy, in a form that clients of both vendors read."""

from typing import Any

from freerun.gateway.refusals import RefusedError


def shown_model(name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "freerun",
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
    }


def shown_models(name: str) -> dict[str, Any]:
    pages = {"has_more": False, "first_id": name, "last_id": name}
    return {"object": "list", "data": [shown_model(name)], **pages}


def no_such_model(asked: str, name: str) -> RefusedError:
    return RefusedError(
        f'model: "{asked}" is not served here; ask for "{name}"', status=404, code="model_not_found", param="model"
    )

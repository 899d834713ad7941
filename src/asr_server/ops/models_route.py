"""`/v1/models`: the values of the `model` field."""

from __future__ import annotations

from fastapi import APIRouter

from asr_server.engine.catalog import Model
from asr_server.net.errors import ErrorBody
from asr_server.ops.schemas import ModelBody, ModelList
from asr_server.services import ServicesDep

router = APIRouter(prefix="/v1/models", tags=["models"])


@router.get("")
async def list_models(services: ServicesDep) -> ModelList:
    """Every served name, aliases included."""
    return ModelList(data=[_body(model) for model in services.catalog.all()])


# `:path`, because clients send the slash of a hub id both encoded and plain.
@router.get("/{model_id:path}", responses={404: {"model": ErrorBody}})
async def retrieve_model(model_id: str, services: ServicesDep) -> ModelBody:
    """One name."""
    return _body(services.catalog.retrieve(model_id))


def _body(model: Model) -> ModelBody:
    return ModelBody(id=model.id, created=model.created, owned_by=model.owned_by, task=model.task)

"""The OpenAPI description: the services of each table that is there, with its columns."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from ..staging.columns import type_text
from .spec import TableSpec


def describe(general: Mapping[str, Any], tables: Mapping[str, TableSpec], *, alone: bool = False) -> dict[str, Any]:
    """The general description with the paths of each table in place of `{table}`; `alone`: only those of tables."""
    described: dict[str, Any] = copy.deepcopy(dict(general))
    paths: dict[str, Any] = {}
    for path, methods in dict(general["paths"]).items():
        if "{table}" not in path:
            if not alone:
                paths[path] = copy.deepcopy(methods)
            continue
        for name, spec in sorted(tables.items()):
            paths[path.replace("{table}", name)] = {
                method: _operation(operation, spec) for method, operation in methods.items()
            }
        if path == "/tables/{table}" and not alone:
            paths[path] = copy.deepcopy(methods)  # how a table is made
    described["paths"] = paths
    described["tags"] = [{"name": name, "description": _about(spec)} for name, spec in sorted(tables.items())]
    schemas = described.setdefault("components", {}).setdefault("schemas", {})
    for name, spec in tables.items():
        schemas[f"Row_{name}"] = _row(spec)
    described["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    described["security"] = [{"token": []}]
    return described


def _operation(operation: Mapping[str, Any], spec: TableSpec) -> dict[str, Any]:
    told: dict[str, Any] = copy.deepcopy(dict(operation))
    told["tags"] = [spec.name]
    told["operationId"] = f"{operation['operationId']}_{spec.name}"
    told["parameters"] = [entry for entry in told.get("parameters", []) if entry.get("name") != "table"]
    for content in told.get("requestBody", {}).get("content", {}).values():
        if content.get("schema", {}).get("format") == "binary":
            content["schema"]["description"] = f"Rows of #/components/schemas/Row_{spec.name} as an Arrow IPC stream"
    return told


def _about(spec: TableSpec) -> str:
    key = f" by {', '.join(spec.key)}" if spec.key else ""
    return f"Target table {spec.name}: {spec.mode}{key}."


def _row(spec: TableSpec) -> dict[str, Any]:
    columns = {entry.name: {**_kind(entry.type), "x-arrow-type": type_text(entry.type)} for entry in spec.schema}
    return {"type": "object", "properties": columns, "required": list(spec.key), "description": _about(spec)}


def _kind(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_boolean(kind):
        return {"type": "boolean"}
    if pa.types.is_integer(kind):
        return {"type": "integer", "format": "int64" if kind.bit_width == 64 else "int32"}
    if pa.types.is_floating(kind):
        return {"type": "number"}
    if pa.types.is_timestamp(kind):
        return {"type": "string", "format": "date-time"}
    if pa.types.is_date(kind):
        return {"type": "string", "format": "date"}
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return {"type": "object"}
    if pa.types.is_nested(kind):
        return {"type": "array", "items": _kind(kind.value_type)}
    return {"type": "string"}

"""All names of Flower that its documentation does not have, and so may be gone in its next version.

`from .undocumented import now` loads the one that is named: a node's process does without the rest.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import Any

from fedloom.core.extras import install

_CONSTANT, _CORE = "flwr.common.constant", "flwr.supercore"
_NODE = "flwr.supernode.runtime.run_clientapp"
# {name here: module:name of Flower}
PLACES = {
    # gate: the requests of nodes, their headers, and their signatures
    "ARRAY_CHUNK": f"{_CONSTANT}:FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE",
    "SYSTEM_TIME_TOLERANCE": f"{_CONSTANT}:SYSTEM_TIME_TOLERANCE",
    "TIMESTAMP_HEADER": f"{_CONSTANT}:TIMESTAMP_HEADER",
    "TIMESTAMP_TOLERANCE": f"{_CONSTANT}:TIMESTAMP_TOLERANCE",
    "FLEET_HTTP_PUBLIC_KEY_HEADER": f"{_CORE}.constant:FLEET_HTTP_PUBLIC_KEY_HEADER",
    "FLEET_HTTP_SIGNATURE_HEADER": f"{_CORE}.constant:FLEET_HTTP_SIGNATURE_HEADER",
    "now": f"{_CORE}.date:now",
    "ApiErrorCode": f"{_CORE}.error:ApiErrorCode",
    "bytes_to_public_key": f"{_CORE}.primitives.asymmetric:bytes_to_public_key",
    "verify_signature": f"{_CORE}.primitives.asymmetric:verify_signature",
    # superlink
    "superlink": "flwr.superlink.main:app",
    # executor
    "AcquireTaskRequest": "flwr.proto.runtime_pb2:AcquireTaskRequest",
    "RuntimeHttpClient": f"{_CORE}.runtime:RuntimeHttpClient",
    "RuntimeTokenHttpInterceptor": f"{_CORE}.interceptors:RuntimeTokenHttpInterceptor",
    "SuperExecAuthHttpInterceptor": f"{_CORE}.interceptors:SuperExecAuthHttpInterceptor",
    "HeartbeatSender": f"{_CORE}.heartbeat:HeartbeatSender",
    "make_task_heartbeat_fn_http": f"{_CORE}.heartbeat:make_task_heartbeat_fn_http",
    "make_simple_http_retry_invoker": f"{_CORE}.retry:make_simple_http_retry_invoker",
    "pull_task_input": f"{_NODE}:pull_task_input",
    "push_message": f"{_NODE}:push_message",
    "push_task_output": f"{_NODE}:push_task_output",
}


def __getattr__(name: str) -> Any:
    """What Flower has by a name. Raises ImportError if it is gone."""
    if name not in PLACES:
        raise AttributeError(name)
    module, _, attribute = PLACES[name].partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"Flower {version('flwr')} has no {PLACES[name]} any more; {install('flower')}"
        ) from error

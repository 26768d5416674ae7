"""Tells Flower's server the keys of all nodes, in one process: its own command takes one for each,
and seconds of a core.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ..clients import public_keys
from ..folder import Folder
from .undocumented import (
    ListNodesRequest,
    RegisterNodeRequest,
    UnregisterNodeRequest,
    cli_output_handler,
    flwr_cli_exc_handler,
    init_http_client_from_connection,
    print_json_to_stdout,
    read_superlink_connection,
)

_OUT = "unregistered"  # the status of a node that may not come again


def main() -> None:
    """Register the clients of clients.toml, and take out all others. Prints JSON."""
    keys, _ = public_keys(Folder(Path(sys.argv[1])).clients_file)
    with cli_output_handler(output_format="json"):
        server = init_http_client_from_connection(read_superlink_connection(None))
        with flwr_cli_exc_handler():
            nodes = server.ListNodes(ListNodesRequest()).nodes_info
            registered = {node.public_key: node.node_id for node in nodes if node.status != _OUT}
            for key in keys:
                if key not in registered:
                    server.RegisterNode(RegisterNodeRequest(public_key=key))
            for key in registered.keys() - {*keys}:
                server.UnregisterNode(UnregisterNodeRequest(node_id=registered[key]))
        server.close()
        print_json_to_stdout({"success": True})


if __name__ == "__main__":
    main()

"""What a step has to tell the clients, collected per client and sent once a step."""

from __future__ import annotations

from rtlang.runtime.messages import Failed, Output, Outputs, Response


class Outbox:
    def __init__(self) -> None:
        self._outputs: dict[bytes, list[Output]] = {}
        self._failed: list[tuple[bytes, Failed]] = []

    def output(self, client: bytes, output: Output) -> None:
        self._outputs.setdefault(client, []).append(output)

    def failed(self, client: bytes, failed: Failed) -> None:
        self._failed.append((client, failed))

    def drop_client(self, client: bytes) -> None:
        self._outputs.pop(client, None)
        self._failed = [item for item in self._failed if item[0] != client]

    def take(self) -> list[tuple[bytes, Response]]:
        """All that was collected since the last call: a client's outputs before its failures."""
        taken: list[tuple[bytes, Response]] = []
        for client, outputs in self._outputs.items():
            taken.append((client, Outputs(outputs)))
        taken.extend(self._failed)
        self._outputs, self._failed = {}, []
        return taken

"""The door of a learner's server: calls without the token are turned away before they are read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import grpc
import grpc.aio

from zerocopy_seed.remote.access import TOKEN_KEY, is_right_token


class TokenGuard(grpc.aio.ServerInterceptor):
    """Lets calls of every service through that bear the token; others get UNAUTHENTICATED.

    Args:
      token: shared by learner and actors.
    """

    def __init__(self, token: str):
        self._token = token

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        metadata = dict(handler_call_details.invocation_metadata or ())
        if is_right_token(metadata, self._token):
            return await continuation(handler_call_details)
        found = "another" if TOKEN_KEY in metadata else "none"

        async def refuse(_: object, context: grpc.aio.ServicerContext) -> None:
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED, f"token: expected the learner's, found {found}"
            )

        # Of the kind that waits for no message, whatever was called.
        return grpc.stream_stream_rpc_method_handler(refuse)

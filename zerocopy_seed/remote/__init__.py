"""The bridge: actors anywhere step environments, the learner's accelerator drives them. Imports no JAX."""

import os

# Read when gRPC starts; else whoever fails a handshake writes a line into a learner's log, at will.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

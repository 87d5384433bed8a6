# Two images: `docker build --target learner -t zerocopy-seed .` and `docker build --target actor -t zerocopy-seed-actor .`
# Processes are PID 1 without a shell between, so that SIGTERM reaches them: the learner saves and ends, an actor says goodbye.

FROM python:3.12-slim AS base
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN useradd --create-home --uid 1000 seed
WORKDIR /app
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY zerocopy_seed zerocopy_seed
COPY envs envs
STOPSIGNAL SIGTERM

# Steps environments and nothing else: no JAX. `docker run zerocopy-seed-actor learner.example.org:8686`
FROM base AS actor
RUN pip install ".[atari]"
USER seed
ENTRYPOINT ["zerocopy-seed", "actor"]

# Trains, with CUDA's libraries from wheels: the host needs the driver and the NVIDIA container toolkit.
# `docker run --gpus all -v runs:/home/seed/runs -p 8686:8686 zerocopy-seed train configs/vtrace_pong.toml \
#    --bridge.address 0.0.0.0:8686 --bridge.cert ...` (docs/operations.md). `--stop-timeout 120` leaves time to save.
FROM base AS learner
RUN pip install ".[cuda12,brax,atari,video]"
COPY configs /home/seed/configs
RUN mkdir -p /home/seed/runs && chown seed:seed /home/seed/runs
USER seed
WORKDIR /home/seed
VOLUME /home/seed/runs
EXPOSE 8686
ENTRYPOINT ["zerocopy-seed"]
CMD ["--help"]

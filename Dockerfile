# A server in a container:
#
#   docker build -t interbed .
#   docker run --rm -p 8000:8000 interbed                                     # the storyteller, and what is fetched
#   docker run --rm -p 8000:8000 -v /models:/models interbed serve /models/8b --host 0.0.0.0 --memory 20G
#   docker run --rm -p 8000:8000 -v hub:/var/cache/interbed interbed serve ORG/NAME --host 0.0.0.0    # kept in a volume
ARG BUILD_BASE=rust:1.95-bookworm
ARG RUN_BASE=debian:bookworm-slim

FROM ${BUILD_BASE} AS build
WORKDIR /interbed
COPY . .
RUN cargo build --release --locked -p interbed

FROM ${RUN_BASE}
# Models by name come over https; they are kept where the user below, who has no home, may write.
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/* && \
    install -d -o 65534 -g 65534 /var/cache/interbed
ENV HF_HOME=/var/cache/interbed XDG_CACHE_HOME=/var/cache
COPY --from=build /interbed/target/release/interbed /usr/bin/interbed
COPY models/storyteller /usr/share/interbed/models/storyteller
USER 65534
EXPOSE 8000
ENTRYPOINT ["interbed"]
CMD ["serve", "--host", "0.0.0.0"]

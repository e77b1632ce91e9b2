# A server in a container:
#
#   docker build -t strata .
#   docker run --rm -p 8000:8000 strata                                     # the storyteller
#   docker run --rm -p 8000:8000 -v /models:/models strata serve /models/8b --host 0.0.0.0 --memory 20G
ARG BUILD_BASE=rust:1.95-bookworm
ARG RUN_BASE=debian:bookworm-slim

FROM ${BUILD_BASE} AS build
WORKDIR /strata
COPY . .
RUN cargo build --release --locked -p strata

FROM ${RUN_BASE}
COPY --from=build /strata/target/release/strata /usr/bin/strata
COPY models/storyteller /usr/share/strata/models/storyteller
USER 65534
EXPOSE 8000
ENTRYPOINT ["strata"]
CMD ["serve", "--host", "0.0.0.0"]

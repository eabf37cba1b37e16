# The images that compose.yaml runs. The programs are static and built outside, by `make images`, which calls this: so
# the image build needs no compiler, and no network where the base already carries git and certificates.
#
# BASE is any Debian or Ubuntu; scripts/build-images.sh makes one where no registry can be reached.
ARG BASE=debian:12-slim

FROM ${BASE} AS base
RUN { command -v git && test -s /etc/ssl/certs/ca-certificates.crt; } >/dev/null || { \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends bash ca-certificates git \
		&& rm -rf /var/lib/apt/lists/*; }
RUN groupadd --gid 10001 turnpike && useradd --uid 10001 --gid 10001 --no-log-init --create-home turnpike

# What turns of placement container run in: the four pinned agent CLIs on the base, and no program of Turnpike's, which
# the worker brings along. scripts/build-agent-image.sh gives it a context of its own: the others need none of it.
FROM base AS agents
COPY .cache/agents /opt/agents
ENV PATH=/opt/agents/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
CMD ["bash"]

FROM base AS dispatcher
COPY bin/dispatcher /usr/local/bin/
USER 10001:10001
EXPOSE 8420
ENTRYPOINT ["dispatcher"]
CMD ["serve"]

# The worker carries the pinned agent CLI. Turns run as the worker's own user, without capabilities, held by Landlock.
FROM base AS worker
RUN install -d -o 10001 -g 10001 -m 0700 /var/lib/turnpike
COPY .cache/agents/node_modules/@anthropic-ai/claude-code-linux-*/claude /usr/local/bin/
COPY bin/worker bin/launcher /usr/local/bin/
USER 10001:10001
VOLUME /var/lib/turnpike
ENTRYPOINT ["worker"]
CMD ["serve"]

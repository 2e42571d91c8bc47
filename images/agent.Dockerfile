# An image for coding agents: git, node, python, the usual tools, and room for the agents themselves.
#
#   belljar image build --agent                                        no agent in it
#   belljar image build --agent --build-arg NPM_PACKAGES=@anthropic-ai/claude-code
#   belljar image build --agent --build-arg "NPM_PACKAGES=@anthropic-ai/claude-code @openai/codex"
#   belljar run --backend docker --image belljar-agent -- claude --version
#
# Or copy it and change it: belljar image dockerfile > my.Dockerfile

FROM debian:stable-slim

RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
      build-essential \
      ca-certificates \
      curl \
      fd-find \
      file \
      git \
      jq \
      less \
      nodejs \
      npm \
      openssh-client \
      patch \
      procps \
      python3 \
      python3-pip \
      python3-venv \
      ripgrep \
      unzip \
      xz-utils \
 && rm -rf /var/lib/apt/lists/*

# Agents for everybody go here. It belongs to root: a run is some ordinary user, can execute what is
# here, and cannot change it.
RUN mkdir -p /opt/agents/bin /opt/agents/lib
ENV PATH=/opt/agents/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# Agents from npm, separated by spaces; a version can be pinned with @. Examples:
#   @anthropic-ai/claude-code    @openai/codex    @google/gemini-cli
ARG NPM_PACKAGES=""
RUN if [ -n "$NPM_PACKAGES" ]; then \
      npm install --global --prefix /opt/agents --no-fund --no-audit $NPM_PACKAGES \
   && npm cache clean --force; fi

# More Debian packages, separated by spaces. Examples: golang  cargo  default-jdk-headless
ARG APT_PACKAGES=""
RUN if [ -n "$APT_PACKAGES" ]; then \
      apt-get update \
   && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends $APT_PACKAGES \
   && rm -rf /var/lib/apt/lists/*; fi

# In a run: what it installs itself goes to its own home, whose bin is on its PATH; and an agent does not
# try to update itself, since it could not.
ENV NPM_CONFIG_PREFIX=/home/agent/.local \
    NPM_CONFIG_UPDATE_NOTIFIER=false \
    DISABLE_AUTOUPDATER=1

WORKDIR /workspace
CMD ["bash"]

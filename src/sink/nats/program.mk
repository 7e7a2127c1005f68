# Debian: libnats libnats-dev
SINK_MODULES_nats = libnats

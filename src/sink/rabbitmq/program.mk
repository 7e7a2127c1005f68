# Debian: librabbitmq librabbitmq-dev
# Debian: openssl libssl-dev
SINK_MODULES_rabbitmq = librabbitmq openssl

# Debian: libcurl libcurl4-openssl-dev
# Debian: libcrypto libssl-dev
SINK_MODULES_http = libcurl libcrypto
